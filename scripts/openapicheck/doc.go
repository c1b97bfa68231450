// Package openapicheck reads the API's document with a parser that is not ours.
// It is a module of its own so that the parser stays out of spliced's.
package openapicheck
