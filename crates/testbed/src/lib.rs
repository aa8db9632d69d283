//! Real Kubernetes from source, and simulators of upstream operators. For tests only.
