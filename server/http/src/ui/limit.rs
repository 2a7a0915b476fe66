//! The page of one limit: form, figures, keys to try, overrides, history.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

use crate::caller::Caller;
use crate::diff::{self, DiffLine};
use crate::host::{
    ChangeView, HotKey, LimitReport, LimitView, MatchView, OverrideView, TryResult, TryShare,
};

use super::DIFF_TIME_MAX;
use super::chart::ChartView;
use super::format as f;
use super::limit_form::LimitFields;
use super::overrides::with_rights;
use super::policy_form::{ALGORITHMS, OPTIONS, PolicyFields, PolicyOption};
use super::removed;
use super::visit::{PageFrame, PageRefusal, PageResult, Visit, render};

/// Changes on the page.
const HISTORY_SHOWN: usize = 20;
/// Overrides on the page.
const OVERRIDES_OF_LIMIT_SHOWN: usize = 20;
/// Sample keys that are matched at once.
const SAMPLES_MAX: usize = 50;
/// Minutes of the short report, and of the long one.
const REPORT_MINUTES: [u64; 2] = [60, 2880];

/// A form as the caller filled it in, with the server's word about it.
#[derive(Default)]
pub(super) struct LimitDraft {
    pub(super) fields: LimitFields,
    /// The version that the form was made for; `None` for a new limit.
    pub(super) version: Option<u64>,
    /// The limit that follows in the order; empty: it keeps its place.
    pub(super) before: String,
    /// The reason of the change.
    pub(super) reason: String,
    pub(super) error: Option<String>,
    /// Whether the server has checked the text and found no mistake.
    pub(super) is_right: bool,
    pub(super) tried: Option<TryResult>,
}

/// A change with its line diff.
pub(super) struct HistoryRow {
    pub(super) change: ChangeView,
    pub(super) diff: Vec<DiffLine>,
    pub(super) can_revert: bool,
}

/// A sample key with the limit that takes it.
struct SampleRow {
    key: String,
    matched: Result<MatchView, String>,
}

#[derive(Template)]
#[template(path = "limit.html")]
struct LimitPage {
    frame: PageFrame,
    /// The limit in force; `None` while it is new.
    limit: Option<LimitView>,
    draft: LimitDraft,
    policy: PolicyFields,
    /// The token that the form showed first.
    before_policy: String,
    can_edit: bool,
    can_adopt: bool,
    can_override: bool,
    read_only: Option<String>,
    hashed: bool,
    /// Whether other nodes have figures of their own.
    has_cluster: bool,
    report: Option<LimitReport>,
    chart: Option<ChartView>,
    /// Each with whether the caller may remove it.
    overrides: Vec<(OverrideView, bool)>,
    history: Vec<HistoryRow>,
    older: Option<u64>,
    keys: String,
    samples: Vec<SampleRow>,
}

impl LimitPage {
    fn algorithms() -> &'static [(&'static str, &'static str)] {
        &ALGORITHMS
    }

    /// Returns the options with their values, and the classes of their algorithms.
    fn options(&self) -> Vec<(&'static PolicyOption, &str, String)> {
        let class = |option: &PolicyOption| {
            option.of.iter().map(|name| format!("for-{name}")).collect::<Vec<_>>().join(" ")
        };
        let values = OPTIONS.iter().zip(&self.policy.options);
        values.map(|(option, value)| (option, value.as_str(), class(option))).collect()
    }

    /// Returns the sentences on what a result lacks, each with a space before it.
    fn gaps(result: &TryResult) -> String {
        let parents = result.parents.map(|_| {
            " Parents are charged by the recorded keys only: they would deny more.".to_owned()
        });
        let counted_keys = result.counted_keys.map(|_| {
            " This text may count keys as one that are counted apart today, and only the recorded \
             ones are replayed: it would deny more."
                .to_owned()
        });
        let missing = (!result.missing.is_empty())
            .then(|| format!(" No answer: {}.", result.missing.join(", ")));
        [parents, counted_keys, missing].into_iter().flatten().collect()
    }

    /// Returns the lists of keys in a result, with their titles.
    fn news(result: &TryResult) -> [(&'static str, &[String]); 2] {
        [("Newly denied", &result.newly_denied), ("Newly allowed", &result.newly_allowed)]
    }

    /// Returns the lists of keys in a report, with their titles.
    fn tops(report: &LimitReport) -> [(&'static str, &[HotKey]); 3] {
        [
            ("Most denied", &report.top_denied),
            ("Most denied in shadow", &report.top_shadow),
            ("Most requests", &report.top_taken),
        ]
    }

    /// Returns a sentence about the file of overrides; empty without one.
    fn of_file(limit: &LimitView) -> String {
        let Some(file) = &limit.overrides_file else { return String::new() };
        let count = f::count(limit.overrides_of_file);
        format!("{count} more in the file {file}: search for a part of the key. ")
    }

    fn share(share: &TryShare) -> String {
        match share.standard_error {
            Some(error) => {
                format!("{} ± {}", f::percent(share.denied), f::percent(error))
            }
            None => f::percent(share.denied),
        }
    }
}

/// Returns whether the caller may change the limit as it is.
pub(super) fn edits(caller: &Caller, limit: &LimitView) -> bool {
    caller.edits_limit(limit)
}

pub(super) async fn create(visit: Visit) -> PageResult {
    if !visit.caller.edits() {
        return Err(PageRefusal::forbidden("create limits"));
    }
    let fields = LimitFields {
        name: visit.query("name").to_owned(),
        policy: "sliding:100/m".to_owned(),
        ..LimitFields::default()
    };
    let draft = LimitDraft { fields, ..LimitDraft::default() };
    Ok(show_limit(&visit, None, draft, StatusCode::OK))
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let name = visit.query("name").to_owned();
    let Some(limit) = visit.host().limit(&name) else { return removed::show(&visit, name) };
    let draft = draft_of(&limit);
    Ok(show_limit(&visit, Some(limit), draft, StatusCode::OK))
}

/// Returns the form of a limit as it is.
pub(super) fn draft_of(limit: &LimitView) -> LimitDraft {
    let parsed = LimitFields::parse(&limit.toml);
    let error = parsed.as_ref().err().cloned();
    let fields = parsed.unwrap_or_default();
    LimitDraft { fields, version: Some(limit.version), error, ..LimitDraft::default() }
}

/// Renders the page of a limit, or of one that is new, with a form as filled in.
pub(super) fn show_limit(
    visit: &Visit,
    limit: Option<LimitView>,
    draft: LimitDraft,
    status: StatusCode,
) -> Response {
    let host = visit.host();
    let name = limit.as_ref().map(|limit| limit.name.clone());
    let can_edit = limit.as_ref().map_or(visit.caller.edits(), |l| edits(&visit.caller, l));
    let read_only = host.read_only();
    let is_writable = read_only.is_none();
    let is_of_file = limit.as_ref().is_some_and(|limit| limit.source != "api");
    let long = visit.query("minutes") == REPORT_MINUTES[1].to_string();
    let minutes = REPORT_MINUTES[usize::from(long)];
    let report = name.as_ref().and_then(|name| host.report(name, minutes));
    let can_edit = can_edit && !is_of_file && is_writable;
    let (history, older) = limit.as_ref().map_or_else(Default::default, |limit| {
        let is_other = |change: &ChangeView| change.body.as_ref().is_some_and(|b| *b != limit.toml);
        history_rows(visit, &limit.name, |change| can_edit && is_other(change))
    });
    let mut overrides =
        name.as_ref().map(|name| host.overrides(Some(name), None)).unwrap_or_default();
    overrides.truncate(OVERRIDES_OF_LIMIT_SHOWN);
    let overrides = with_rights(visit, overrides);
    let title =
        name.as_ref().map_or_else(|| "New limit".to_owned(), |name| format!("Limit {name}"));
    let page = LimitPage {
        frame: visit.frame(title, "/ui/limits"),
        policy: PolicyFields::parse(&draft.fields.policy),
        before_policy: draft.fields.policy.clone(),
        draft,
        can_edit,
        can_adopt: is_of_file && visit.caller.administers() && is_writable,
        can_override: overrides.iter().any(|(_, can_remove)| *can_remove),
        read_only,
        hashed: host.status().keys_hashed,
        has_cluster: host.nodes().is_some(),
        chart: report.as_ref().map(ChartView::series),
        report,
        overrides,
        history,
        older,
        keys: visit.query("keys").to_owned(),
        samples: samples(visit),
        limit,
    };
    render(status, &page)
}

fn samples(visit: &Visit) -> Vec<SampleRow> {
    let keys = visit.query("keys").lines().map(str::trim).filter(|key| !key.is_empty());
    let row = |key: &str| SampleRow {
        key: key.to_owned(),
        matched: visit.host().match_key(key.as_bytes()).map_err(|error| error.to_string()),
    };
    keys.take(SAMPLES_MAX).map(row).collect()
}

/// Returns the changes that the page shows, and the oldest of them if there are older ones.
pub(super) fn history_rows(
    visit: &Visit,
    name: &str,
    can_revert: impl Fn(&ChangeView) -> bool,
) -> (Vec<HistoryRow>, Option<u64>) {
    let below = visit.query("older").parse().unwrap_or(u64::MAX);
    let mut changes = visit.host().history(Some(name));
    changes.retain(|change| change.seq < below);
    let older = (changes.len() > HISTORY_SHOWN).then(|| changes[HISTORY_SHOWN - 1].seq);
    let row = |change: ChangeView| HistoryRow {
        diff: if change.knows_text_before() {
            diff::lines(
                change.body_before.as_deref().unwrap_or_default(),
                change.body.as_deref().unwrap_or_default(),
                DIFF_TIME_MAX,
            )
        } else {
            let text = "The text before is not kept.".to_owned();
            vec![DiffLine { sign: ' ', text }]
        },
        can_revert: change.what == "limit" && can_revert(&change),
        change,
    };
    (changes.into_iter().take(HISTORY_SHOWN).map(row).collect(), older)
}
