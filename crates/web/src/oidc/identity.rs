//! Mapping of the claims of an ID token to a user of the cluster, for impersonation. kube-apiserver maps them in the same way
//! with the flags of the same names.

use serde_json::{Map, Value};

/// Prefix of users and groups of Kubernetes itself, such as `system:masters`. They are never impersonated.
const RESERVED: &str = "system:";
/// Means no prefix, as for kube-apiserver.
const NONE: &str = "-";

/// Claims of the user name and groups, and their prefixes.
#[derive(Clone, Debug)]
pub struct ClaimNames {
    /// The claim with the name of the user.
    pub username: String,
    /// Prefix of the user name; `None` is the default of kube-apiserver: the issuer and `#`, unless the claim is `email`.
    pub username_prefix: Option<String>,
    /// The claim with the groups.
    pub groups: Option<String>,
    /// Prefix of each group.
    pub groups_prefix: String,
}

/// Users and groups that the console may impersonate; an empty list does not limit them.
#[derive(Clone, Debug, Default)]
pub struct Impersonation {
    /// Users.
    pub users: Vec<String>,
    /// Groups. A user's other groups are omitted.
    pub groups: Vec<String>,
}

/// A user, as the API server identifies users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub user: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// Reason why claims identify no user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoIdentity {
    /// The claim is missing.
    #[error("the ID token has no string claim '{0}' for the user name (--oidc-username-claim)")]
    NoName(String),
    /// The claim is of another kind.
    #[error("the claim '{0}' of the ID token is neither a string nor a list of strings (--oidc-groups-claim)")]
    Groups(String),
    /// The email address is not verified. Users can often enter any address into their profile.
    #[error("the issuer has not verified your email address")]
    NotVerified,
    /// The name is reserved for Kubernetes.
    #[error("user name '{0}' is reserved: names that begin with system: are never impersonated")]
    Reserved(String),
    /// Others are named.
    #[error("this console may not impersonate user '{0}' (--impersonate-users)")]
    NotListed(String),
}

impl ClaimNames {
    /// Reads the identity from claims.
    ///
    /// # Errors
    /// A claim is missing or has the wrong type, or the user may not be impersonated.
    pub fn read(&self, issuer: &str, claims: &Map<String, Value>, may: &Impersonation) -> Result<Identity, NoIdentity> {
        let name = claims.get(&self.username).and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() {
            return Err(NoIdentity::NoName(self.username.clone()));
        }
        let is_email = self.username == "email";
        if is_email && claims.get("email_verified").is_some_and(|verified| verified != true) {
            return Err(NoIdentity::NotVerified);
        }
        let prefix = match self.username_prefix.as_deref() {
            Some(NONE) => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if is_email => String::new(),
            None => format!("{issuer}#"),
        };
        let user = format!("{prefix}{name}");
        let mut groups = self.groups(claims)?;
        if let Some(reserved) = [&user]
            .into_iter()
            .chain(&groups)
            .find(|name| name.starts_with(RESERVED))
        {
            return Err(NoIdentity::Reserved(reserved.clone()));
        }
        if !may.users.is_empty() && !may.users.contains(&user) {
            return Err(NoIdentity::NotListed(user));
        }
        groups.retain(|group| may.groups.is_empty() || may.groups.contains(group));
        Ok(Identity { user, groups })
    }

    fn groups(&self, claims: &Map<String, Value>) -> Result<Vec<String>, NoIdentity> {
        let Some(claim) = &self.groups else {
            return Ok(Vec::new());
        };
        let wrong = || NoIdentity::Groups(claim.clone());
        let prefixed = |group: &str| format!("{}{group}", self.groups_prefix);
        match claims.get(claim) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(group)) => Ok(vec![prefixed(group)]),
            Some(Value::Array(groups)) => groups
                .iter()
                .map(|group| group.as_str().map(prefixed).ok_or_else(wrong))
                .collect(),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(username: &str) -> ClaimNames {
        ClaimNames {
            username: username.to_owned(),
            username_prefix: None,
            groups: Some("groups".to_owned()),
            groups_prefix: String::new(),
        }
    }

    fn read(names: &ClaimNames, claims: &Value, may: &Impersonation) -> Result<(String, Vec<String>), NoIdentity> {
        let found = names.read("https://id.example", claims.as_object().unwrap(), may)?;
        Ok((found.user, found.groups))
    }

    fn identified(names: &ClaimNames, claims: &Value) -> Result<(String, Vec<String>), NoIdentity> {
        read(names, claims, &Impersonation::default())
    }

    #[test]
    fn names_are_made_as_kube_apiserver_makes_them() {
        let claims = json!({"sub": "1", "email": "jane@x", "groups": ["a", "b"]});
        let groups = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(
            identified(&names("sub"), &claims),
            Ok(("https://id.example#1".to_owned(), groups.clone()))
        );
        assert_eq!(identified(&names("email"), &claims), Ok(("jane@x".to_owned(), groups)));
        let prefixed = ClaimNames {
            username_prefix: Some("oidc:".to_owned()),
            groups_prefix: "oidc:".to_owned(),
            ..names("sub")
        };
        let claims = json!({"sub": "1", "groups": "a"});
        assert_eq!(
            identified(&prefixed, &claims),
            Ok(("oidc:1".to_owned(), vec!["oidc:a".to_owned()]))
        );
        let bare = ClaimNames {
            username_prefix: Some("-".to_owned()),
            ..names("sub")
        };
        assert_eq!(
            identified(&bare, &json!({"sub": "1"})),
            Ok(("1".to_owned(), Vec::new()))
        );
    }

    #[test]
    fn missing_and_reserved_user_names_are_rejected() {
        let bare = ClaimNames {
            username_prefix: Some("-".to_owned()),
            ..names("sub")
        };
        for group in ["system:masters", "system:nodes", "system:serviceaccounts"] {
            let claims = json!({"sub": "1", "groups": ["a", group]});
            assert_eq!(identified(&bare, &claims), Err(NoIdentity::Reserved(group.to_owned())));
        }
        let claims = json!({"sub": "system:kube-controller-manager"});
        assert!(matches!(identified(&bare, &claims), Err(NoIdentity::Reserved(_))));
        for claims in [json!({}), json!({"sub": ""}), json!({"sub": 1})] {
            assert_eq!(identified(&bare, &claims), Err(NoIdentity::NoName("sub".to_owned())));
        }
        for claims in [
            json!({"sub": "1", "groups": {"a": 1}}),
            json!({"sub": "1", "groups": [1]}),
        ] {
            assert_eq!(identified(&bare, &claims), Err(NoIdentity::Groups("groups".to_owned())));
        }
        for verified in [json!(false), json!("true")] {
            let claims = json!({"email": "jane@x", "email_verified": verified});
            assert_eq!(identified(&names("email"), &claims), Err(NoIdentity::NotVerified));
        }
    }

    #[test]
    fn only_those_who_are_listed_are_impersonated() {
        let may = Impersonation {
            users: vec!["jane".to_owned()],
            groups: vec!["team-a".to_owned()],
        };
        let bare = ClaimNames {
            username_prefix: Some("-".to_owned()),
            ..names("sub")
        };
        let groups = json!(["team-a", "admins"]);
        let jane = read(&bare, &json!({"sub": "jane", "groups": groups}), &may);
        assert_eq!(jane, Ok(("jane".to_owned(), vec!["team-a".to_owned()])));
        let joe = read(&bare, &json!({"sub": "joe", "groups": groups}), &may);
        assert_eq!(joe, Err(NoIdentity::NotListed("joe".to_owned())));
    }
}
