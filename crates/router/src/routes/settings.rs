//! Settings of the routes controller. Pure.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use runway_api::{Name, Namespace};
use runway_operator::process::time;

/// Service of the model router as endpoint picker, and name of the Services by which pools of other namespaces refer to it.
pub const OWN_PICKER: &str = "kubeairunway-gateway-picker";
/// Placeholder for the name of the ModelDeployment in the name of the endpoint picker.
const PLACEHOLDER: &str = "{name}";

/// Arguments of the routes controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Gateway for the models. Without it, nothing is created, changed or deleted
    #[arg(long = "gateway", value_name = "NAMESPACE/NAME")]
    pub gateways: Vec<GatewayName>,
    /// Delete everything that was created for a Gateway, such as before the controller is uninstalled
    #[arg(long, conflicts_with = "gateways")]
    pub delete_routes: bool,
    /// Create an InferencePool for each model also without an endpoint picker (inference extension 1.6)
    #[arg(long)]
    pub inference_pools: bool,
    /// Service of a model's endpoint picker in the model's namespace, such as {name}-epp. Each model gets an InferencePool with it
    #[arg(long, value_name = "NAME")]
    pub endpoint_picker: Option<PickerName>,
    /// Port of that Service
    #[arg(long, value_name = "PORT", default_value_t = 9002, value_parser = clap::value_parser!(u16).range(1..))]
    pub endpoint_picker_port: u16,
    /// Longest time for a request at the Gateway, such as 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = timeout)]
    pub request_timeout: Duration,
}

/// Settings of the routes controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Gateways that the administrator named. Only one is possible; several are reported.
    pub gateways: Vec<GatewayName>,
    /// Whether everything that was created is deleted.
    pub delete: bool,
    /// Whether models get InferencePools.
    pub pools: bool,
    /// Endpoint picker of InferencePools. Without one, the Gateway chooses among the pods.
    pub picker: Option<Picker>,
    /// Longest time for a request.
    pub timeout: Duration,
}

/// Service of an endpoint picker.
#[derive(Clone, Debug)]
pub struct Picker {
    /// Name.
    pub name: PickerName,
    /// Port of the Service.
    pub port: u16,
}

impl From<Args> for Settings {
    fn from(args: Args) -> Self {
        let picker = args.endpoint_picker.map(|name| Picker {
            name,
            port: args.endpoint_picker_port,
        });
        Self {
            gateways: args.gateways,
            delete: args.delete_routes,
            pools: args.inference_pools || picker.is_some(),
            picker,
            timeout: args.request_timeout,
        }
    }
}

impl Settings {
    /// The Gateway, if exactly one is named.
    pub fn gateway(&self) -> Option<&GatewayName> {
        match self.gateways.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// Namespace and name of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayName {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: Name,
}

impl FromStr for GatewayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| format!("'{text}' is not a Gateway: use NAMESPACE/NAME"))?;
        Ok(Self {
            namespace: namespace.parse::<Namespace>().map_err(|error| error.to_string())?,
            name: name.parse::<Name>().map_err(|error| error.to_string())?,
        })
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Name of the Service of an endpoint picker, in which `{name}` stands for the name of the ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickerName(String);

impl FromStr for PickerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = text.replace(PLACEHOLDER, "x");
        example
            .parse::<Name>()
            .map_err(|error| format!("{error}; {PLACEHOLDER} stands for the name of the ModelDeployment"))?;
        Ok(Self(text.to_owned()))
    }
}

impl PickerName {
    /// Name of the Service for a ModelDeployment.
    pub fn of(&self, model: &str) -> String {
        self.0.replace(PLACEHOLDER, model)
    }
}

/// Value parser: a time in whole seconds, at most 24 hours.
fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = time(text)?;
    if parsed.subsec_nanos() > 0 || parsed > Duration::from_hours(24) {
        return Err("use whole seconds, at most 24h".to_owned());
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_is_named_with_its_namespace() {
        let gateway: GatewayName = "infra/models".parse().unwrap();
        assert_eq!(gateway.to_string(), "infra/models");
        for wrong in ["", "models", "/models", "infra/", "a/b/c", "Infra/models", "infra/?"] {
            assert!(wrong.parse::<GatewayName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn picker_has_a_name_for_each_model() {
        let picker: PickerName = "{name}-epp".parse().unwrap();
        assert_eq!(picker.of("gemma"), "gemma-epp");
        assert_eq!("shared".parse::<PickerName>().unwrap().of("gemma"), "shared");
        for wrong in ["", "{model}-epp", "-{name}", "a/{name}"] {
            assert!(wrong.parse::<PickerName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn timeout_is_what_a_route_can_express() {
        assert_eq!(timeout("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["0s", "1500ms", "25h", "soon"] {
            assert!(timeout(wrong).is_err(), "{wrong}");
        }
    }
}
