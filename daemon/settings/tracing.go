package settings

import (
	"net/url"

	"github.com/spliced-kv/spliced/tiering/object"
)

// tracingSettings returns the settings for sending spans to an OpenTelemetry collector.
func (c *Config) tracingSettings() []setting {
	return []setting{
		{"otlp-endpoint", free((*text)(&c.OTLPEndpoint), "http:// or https:// URL"), "no spans",
			"URL to which spans of requests are sent (OTLP over HTTP), such as http://localhost:4318/v1/traces. Each is a child of the engine's span if that request is traced. Spans contain names and counts, never tokens. Of the OTEL_* environment variables only OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_TRACES_HEADERS are used."},
	}
}

func (c *Config) checkTracing(v *Faults) {
	if c.OTLPEndpoint == "" {
		return
	}
	u, err := url.Parse(c.OTLPEndpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || len(c.OTLPEndpoint) > 2048:
		v.Add("otlp-endpoint", "%.100q is not an http:// or https:// URL", c.OTLPEndpoint)
	case u.Hostname() == "":
		v.Add("otlp-endpoint", "%.100q has no host", c.OTLPEndpoint)
	case !object.ValidPort(u):
		v.Add("otlp-endpoint", "%.100q has no port between 1 and 65535", c.OTLPEndpoint)
	}
}
