// Package openapicheck checks the OpenAPI document of the admin REST with an independent parser.
// It is a separate module, so that the main module does not depend on the parser.
package openapicheck
