//! The HTTP API: the table of its routes, with the role that each requires.
//!
//! Here: the table and the check of roles. Not here: the handlers (`api/`), sessions and tokens
//! (`access`), pages (`ui`).

mod cluster;
mod file;
mod history;
mod keys;
mod limits;
mod live;
mod observations;
mod overrides;
mod reply;
mod request;
mod tail;
#[cfg(test)]
mod tests;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};

use self::request::{Admitted, ApiRequest};
use crate::app::App;
use crate::caller::ClientAddress;
use crate::problem::Problem;
use crate::tokens::TokenRole::{self, Admin, Editor, Support, Viewer};

/// The description of the API, written by hand.
const OPENAPI: &str = include_str!("api/openapi.json");

/// A route of the API.
struct ApiRoute {
    #[cfg(test)]
    method: &'static str,
    /// The path with variables in braces.
    path: &'static str,
    /// The least role that may use it.
    role: TokenRole,
    handler: MethodRouter<App>,
}

/// All routes.
fn routes() -> Vec<ApiRoute> {
    macro_rules! table {
        ($($method:ident $path:literal $role:ident $handler:path;)*) => {
            vec![$(ApiRoute {
                #[cfg(test)]
                method: stringify!($method),
                path: $path,
                role: $role,
                handler: on(MethodFilter::$method, $handler),
            }),*]
        };
    }
    table! {
        GET "/api/v1/openapi.json" Viewer openapi;
        GET "/api/v1/status" Viewer cluster::status;
        GET "/api/v1/limits" Viewer limits::list;
        GET "/api/v1/limits/{name}" Viewer limits::get;
        PUT "/api/v1/limits/{name}" Editor limits::put;
        DELETE "/api/v1/limits/{name}" Editor limits::delete;
        GET "/api/v1/limits/{name}/history" Viewer history::history;
        POST "/api/v1/limits/{name}/revert" Editor limits::revert;
        GET "/api/v1/limits/{name}/report" Viewer observations::report;
        POST "/api/v1/limits/{name}/try" Editor observations::try_limit;
        GET "/api/v1/overrides" Viewer overrides::list;
        PUT "/api/v1/limits/{name}/overrides/{key}" Support overrides::put;
        DELETE "/api/v1/limits/{name}/overrides/{key}" Support overrides::delete;
        GET "/api/v1/limits.toml" Viewer file::get;
        PUT "/api/v1/limits.toml" Editor file::put;
        GET "/api/v1/match" Viewer keys::match_key;
        GET "/api/v1/explain" Viewer keys::explain;
        GET "/api/v1/keys/{key}" Viewer keys::get;
        DELETE "/api/v1/keys/{key}" Support keys::reset;
        POST "/api/v1/keys/{key}/refund" Support keys::refund;
        GET "/api/v1/hotkeys" Viewer observations::hot_keys;
        GET "/api/v1/tail" Viewer tail::tail;
        GET "/api/v1/live" Viewer live::live;
        GET "/api/v1/nodes" Viewer cluster::nodes;
        POST "/api/v1/nodes/{node}/drain" Admin cluster::drain;
        POST "/api/v1/nodes/{node}/forget" Admin cluster::forget;
        PUT "/api/v1/settings/{name}" Admin cluster::put_setting;
        GET "/api/v1/audit" Admin history::audit;
        PUT "/api/v1/log-level" Admin cluster::put_log_level;
    }
}

/// Returns the routes of the API.
pub(crate) fn router(app: &App) -> Router<App> {
    routes().into_iter().fold(Router::new(), |router, route| {
        let state = AdmitState { app: app.clone(), role: route.role, template: route.path };
        router.route(route.path, route.handler.route_layer(from_fn_with_state(state, admit)))
    })
}

/// The rule of a route.
#[derive(Clone)]
struct AdmitState {
    app: App,
    role: TokenRole,
    template: &'static str,
}

/// Finds the sender of a request and refuses one whose role is too low.
async fn admit(
    State(rule): State<AdmitState>,
    address: ClientAddress,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let caller = rule.app.access.caller(request.headers(), address)?;
    caller.require(rule.role)?;
    request.extensions_mut().insert(Admitted { caller, template: rule.template });
    Ok(next.run(request).await)
}

async fn openapi(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], OPENAPI).into_response())
}
