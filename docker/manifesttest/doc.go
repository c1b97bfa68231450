// Package manifesttest checks the manifests beside it as a cluster would: strict
// decoding, Pod Security "restricted", and agreement with the daemon they start.
// It is a module of its own so that Kubernetes' types stay out of spliced's.
package manifesttest
