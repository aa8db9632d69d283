//! The routes controller in the cluster: `kubeairunway-gateway-routes`, for those who have a Gateway and ask for it.
//!
//! It may read ModelDeployments, Gateways, Services and EndpointSlices, manage HTTPRoutes and InferencePools, and write its part of
//! the status, and nothing else.

use runway_api::labels;

use super::component::Component;

/// Name of the component, and of its program.
pub const NAME: &str = labels::GATEWAY_MANAGER;

/// The routes controller.
pub fn routes() -> Component {
    Component {
        access: runway_router::routes::access(),
        access_in_namespace: runway_router::routes::access_in_namespace(),
        ..Component::new(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_an_installation_are_kept() {
        let installed = ["--leader-elect", "--gateway=infra/models"].map(str::to_owned);
        let kept = routes().with_arguments_of(&installed);
        assert_eq!(kept.args, ["--gateway=infra/models"]);
        let again = routes().with_arguments_of(&crate::pods::arguments(&kept, &"team-a".parse().unwrap()));
        assert_eq!(again.args, kept.args, "nothing is added twice");
    }

    #[test]
    fn it_writes_routes_and_pools_and_nothing_else_of_others() {
        let rights: Vec<String> = routes()
            .access
            .iter()
            .map(|rule| {
                format!(
                    "{} {}",
                    rule.resources.clone().unwrap_or_default().join(","),
                    rule.verbs.join(",")
                )
            })
            .collect();
        assert_eq!(
            rights,
            [
                "modeldeployments list,watch",
                "modeldeployments/status patch",
                "modeldeployments/finalizers update",
                "gateways list,watch",
                "httproutes list,watch,create,patch,delete",
                "inferencepools list,watch,create,patch,delete",
                "services list,watch",
                "endpointslices list,watch",
                "events create,patch",
                "customresourcedefinitions list,watch",
            ]
        );
    }
}
