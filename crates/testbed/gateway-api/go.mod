// Pins the CRDs of the Gateway API and of its inference extension. Nothing is built: their files are copied.
// To move to another release: change the version, run `go mod download PATH` for each module, commit both files.
module runway-testbed/gateway-api

go 1.26.0

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
