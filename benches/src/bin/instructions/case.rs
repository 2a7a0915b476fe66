//! The cases: commands, each with its preparation and its expected reply.
//!
//! Here: the table. Not here: how a case is run (`run`).

/// A command, sent once for each of many keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// A request sent first for each key, which replaces `{}`; nothing is sent if it is empty.
    pub(crate) before: &'static str,
    /// The number of times that the request itself is sent first for each key, a second apart.
    pub(crate) repeated: u64,
    pub(crate) request: &'static str,
    /// The number of keys that replace `{}` in one request.
    pub(crate) keys: usize,
    /// The part of the reply that occurs once per key.
    pub(crate) answer: &'static str,
    /// The limits file.
    pub(crate) limits: &'static str,
    /// The policy of an override of each key, for the limit `user`; none if it is empty.
    pub(crate) overrides: &'static str,
}

/// A request on keys in the state that `before` left.
const fn case(
    name: &'static str,
    before: &'static str,
    request: &'static str,
    answer: &'static str,
) -> Case {
    Case { name, before, repeated: 0, request, keys: 1, answer, limits: "", overrides: "" }
}

/// A request that was sent `repeated` times before, for the same keys.
const fn again(
    name: &'static str,
    repeated: u64,
    request: &'static str,
    answer: &'static str,
) -> Case {
    Case { repeated, ..case(name, "", request, answer) }
}

impl Case {
    const fn of_keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    const fn under(self, limits: &'static str) -> Self {
        Self { limits, ..self }
    }

    const fn overridden(self, policy: &'static str) -> Self {
        Self { overrides: policy, ..self }
    }
}

const NUMBER: &str = "set {} 0 0 2\r\n10\r\n";
const VALUE: &str = "set {} 0 0 32\r\n01234567890123456789012345678901\r\n";
const SPENT: &str = "take {} 200 bucket:100/60s,capacity=200\r\n";

/// A limit that matches other keys.
const OTHERS: &str =
    "[[limit]]\nname = 'other'\nmatch = 'other:{id}'\npolicy = 'sliding:1000/60s'\n";
const BOUND: &str = "[[limit]]\nname = 'user'\nmatch = 'user:{id}'\npolicy = 'sliding:1000/60s'\n";
const WITH_PARENT: &str = "[[limit]]\nname = 'all'\nmatch = 'all:{x}'\npolicy = 'sliding:1M/60s'\n\
    [[limit]]\nname = 'user'\nmatch = 'user:{id}'\npolicy = 'sliding:1000/60s'\n\
    parents = ['all:users']\n";

/// All cases.
pub(crate) const CASES: [Case; 31] = [
    case("incr", NUMBER, "incr {} 1\r\n", "11\r\n"),
    case("incr-miss", "", "incr {} 1\r\n", "NOT_FOUND\r\n"),
    case("get", NUMBER, "get {}\r\n", "VALUE "),
    case("get-100", NUMBER, "get {}\r\n", "VALUE ").of_keys(100),
    case("get-value", VALUE, "get {}\r\n", "VALUE "),
    case("gets", NUMBER, "gets {}\r\n", "VALUE "),
    case("set", VALUE, VALUE, "STORED\r\n"),
    case("add", "", "add {} 0 60 2\r\n10\r\n", "STORED\r\n"),
    case("cas", "ms {} 2 E7\r\n10\r\n", "cas {} 0 0 2 7\r\n11\r\n", "STORED\r\n"),
    case("delete", NUMBER, "delete {}\r\n", "DELETED\r\n"),
    case("touch", NUMBER, "touch {} 60\r\n", "TOUCHED\r\n"),
    case("mg", NUMBER, "mg {} v\r\n", "VA 2\r\n10\r\n"),
    case("ms", NUMBER, "ms {} 2 T60\r\n11\r\n", "HD\r\n"),
    case("ma", NUMBER, "ma {} N60 J1 v\r\n", "VA 2\r\n11\r\n"),
    again("incrx", 1, "incrx {} 1 60 max=1000\r\n", "2 1 59000\r\n"),
    case("take-new", "", "take {} 1 bucket:100/60s,capacity=200\r\n", "ALLOW "),
    again("take-bucket", 1, "take {} 1 bucket:100/60s,capacity=200\r\n", "ALLOW "),
    again("take-used", 1, "take {} 1 bucket:1/1d,capacity=100000\r\n", "ALLOW "),
    case("take-refused", SPENT, "take {} 5 bucket:100/60s,capacity=200\r\n", "DENY "),
    again("take-gcra", 1, "take {} 1 gcra:100/60s,burst=50\r\n", "ALLOW "),
    again("take-fixed", 1, "take {} 1 fixed:100/60s\r\n", "ALLOW "),
    again("take-window", 1, "take {} 1 sliding:100/60s\r\n", "ALLOW "),
    again("take-slices", 30, "take {} 1 sliding:100/60s,slices=60\r\n", "ALLOW "),
    again("take-log", 10, "take {} 1 log:100/60s\r\n", "ALLOW "),
    again("take-concurrency", 1, "take {} 1 concurrency:20\r\n", "ALLOW "),
    case("refund", SPENT, "refund {} 100\r\n", "ALLOW "),
    case("incr-unbound", NUMBER, "incr {} 1\r\n", "11\r\n").under(OTHERS),
    again("incr-bound", 1, "incr {} 1\r\n", "2\r\n").under(BOUND),
    again("incr-override", 1, "incr {} 1\r\n", "2\r\n").under(BOUND).overridden("sliding:900/60s"),
    again("take-bound", 1, "take {} 1 -\r\n", "ALLOW ").under(BOUND),
    again("incr-parent", 1, "incr {} 1\r\n", "2\r\n").under(WITH_PARENT),
];
