//! Translates a ModelDeployment into KAITO Workspaces and InferenceSets.
