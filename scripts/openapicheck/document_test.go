package openapicheck

import (
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

func TestDocumentIsValidOpenAPI(t *testing.T) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromFile("../../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(doc.Paths.Map()); n < 10 {
		t.Errorf("%d paths: was anything read?", n)
	}
}

func TestBrokenDocumentIsRefused(t *testing.T) {
	text := `{"openapi":"3.1.0","info":{"title":"x","version":"1"},"paths":{"/x":{"get":{"responses":{"200":{"description":"ok",
	"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Absent"}}}}}}}}}`
	doc, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err == nil {
		err = doc.Validate(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "Absent") {
		t.Errorf("%v", err)
	}
}
