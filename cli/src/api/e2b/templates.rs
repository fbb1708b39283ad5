//! Templates: names of snapshots from which sandboxes start. They are built with `floe template`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::super::error::{ErrorBody, HttpError};
use super::super::input::Name;
use super::super::state::{Api, Shared};
use super::models::ENVD_VERSION;
use super::snapshots;
use crate::wire::sandbox;

const MIB: u64 = 1 << 20;

/// A template.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    /// Its name.
    #[serde(rename = "templateID")]
    template_id: String,
    /// The snapshot.
    #[serde(rename = "buildID")]
    build_id: String,
    /// Processors a sandbox made from it may use.
    cpu_count: u64,
    /// MiB of memory it may use.
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    /// MiB its files may take.
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    /// Always `false`.
    public: bool,
    /// Its name.
    aliases: Vec<String>,
    /// Its name.
    names: Vec<String>,
    /// When the name was last given to a snapshot.
    created_at: String,
    /// The same.
    updated_at: String,
    /// Always null.
    created_by: Option<String>,
    /// Always null: it is not counted.
    last_spawned_at: Option<String>,
    /// Always 0: it is not counted.
    spawn_count: u64,
    /// Always 1: what the name was given to before is not counted.
    build_count: u64,
    /// The version of the sandbox's side of the protocol.
    envd_version: &'static str,
    /// Always `ready`.
    build_status: &'static str,
}

impl Template {
    fn new(api: &Api, template: sandbox::Template) -> Self {
        Self {
            template_id: template.name.clone(),
            build_id: template.snapshot,
            cpu_count: api.host.cpus,
            memory_mb: api.host.memory_bytes / MIB,
            disk_size_mb: api.host.disk_bytes / MIB,
            public: false,
            aliases: vec![template.name.clone()],
            names: vec![template.name],
            created_at: template.updated_at.clone(),
            updated_at: template.updated_at,
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: 1,
            envd_version: ENVD_VERSION,
            build_status: "ready",
        }
    }
}

/// A template with what it was built of.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TemplateWithBuilds {
    /// The template.
    #[serde(flatten)]
    template: Template,
    /// The one snapshot it names.
    builds: Vec<Build>,
}

/// A snapshot that a template names.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Build {
    /// The snapshot.
    #[serde(rename = "buildID")]
    build_id: String,
    /// Always `ready`.
    status: &'static str,
    /// When the name was given to it.
    created_at: String,
    /// The same.
    updated_at: String,
    /// The same.
    finished_at: String,
    /// Processors a sandbox made from it may use.
    cpu_count: u64,
    /// MiB of memory it may use.
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
}

/// Whose a name is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alias {
    /// The template.
    #[serde(rename = "templateID")]
    template_id: String,
    /// Always `false`.
    public: bool,
}

/// Lists templates by name.
#[utoipa::path(
    get,
    path = "/templates",
    tag = "templates",
    responses((status = 200, body = Vec<Template>)),
)]
pub(super) async fn list(State(api): State<Shared>) -> Result<Json<Vec<Template>>, HttpError> {
    let found = api.work(|backend| backend.templates()).await?;
    let each = found.into_iter();
    Ok(Json(each.map(|one| Template::new(&api, one)).collect()))
}

/// Lists templates by name; all on one page.
#[utoipa::path(
    get,
    path = "/v2/templates",
    tag = "templates",
    responses((status = 200, body = Vec<Template>)),
)]
pub(super) async fn list_v2(api: State<Shared>) -> Result<Json<Vec<Template>>, HttpError> {
    list(api).await
}

/// Describes a template.
#[utoipa::path(
    get,
    path = "/templates/{template_id}",
    tag = "templates",
    params(("template_id" = String, Path, description = "Its name")),
    responses(
        (status = 200, body = TemplateWithBuilds),
        (status = 404, body = ErrorBody, description = "No such template"),
    ),
)]
pub(super) async fn show(
    State(api): State<Shared>,
    Name(name): Name,
) -> Result<Json<TemplateWithBuilds>, HttpError> {
    let found = api.work(move |backend| backend.template(&name)).await?;
    let build = Build {
        build_id: found.snapshot.clone(),
        status: "ready",
        created_at: found.updated_at.clone(),
        updated_at: found.updated_at.clone(),
        finished_at: found.updated_at.clone(),
        cpu_count: api.host.cpus,
        memory_mb: api.host.memory_bytes / MIB,
    };
    Ok(Json(TemplateWithBuilds {
        template: Template::new(&api, found),
        builds: vec![build],
    }))
}

/// Says whether a template has that name.
#[utoipa::path(
    get,
    path = "/templates/aliases/{alias}",
    tag = "templates",
    params(("alias" = String, Path, description = "The name")),
    responses(
        (status = 200, body = Alias),
        (status = 404, body = ErrorBody, description = "No such template"),
    ),
)]
pub(super) async fn by_alias(
    State(api): State<Shared>,
    Name(name): Name,
) -> Result<Json<Alias>, HttpError> {
    let found = api.work(move |backend| backend.template(&name)).await?;
    Ok(Json(Alias {
        template_id: found.name,
        public: false,
    }))
}

/// Deletes a template by its name, or a snapshot by its id: the contract has one path for both.
/// Sandboxes that were made from it go on.
#[utoipa::path(
    delete,
    path = "/templates/{template_id}",
    tag = "templates",
    params(("template_id" = String, Path, description = "A template's name or a snapshot's id, encoded: it may hold `/` and `:`")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, body = ErrorBody, description = "It was gone already, or never was"),
        (status = 409, body = ErrorBody, description = "It is protected"),
    ),
)]
pub(super) async fn delete(
    State(api): State<Shared>,
    Name(name): Name,
) -> Result<StatusCode, HttpError> {
    api.work(move |backend| snapshots::delete(backend, &name))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
