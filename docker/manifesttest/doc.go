// Package manifesttest checks the manifests beside it as a cluster would: strict
// decoding, Pod Security "restricted", and agreement with the daemon they start.
// It is a separate module, to keep Kubernetes' types out of spliced's.
package manifesttest
