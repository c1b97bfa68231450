package settings

import "github.com/spliced-kv/spliced/connector/wire"

// MaxTenantToken is the maximum size of a tenant's token in bytes.
const MaxTenantToken = wire.MaxToken

// adminSettings returns the settings for access to the admin REST's TCP listener.
func (c *Config) adminSettings() []setting {
	return []setting{
		{"token-file", path(&c.TokenFile, "path of a file with at least 16 bytes"), "no mutations over http",
			"File with the bearer token that allows reading and mutations over http. A reload rereads this file, as it does those of router-token-file, admin-read-token-file, admin-tls-cert-file and admin-tls-key-file."},
		{"router-token-file", path(&c.RouterTokenFile, "path of a file with at least 16 bytes"), "routers need the token of token-file",
			"File with the bearer token that lets routers ask over http where prompts are held (locate). It grants access to nothing else that needs a token."},
		{"admin-read-token-file", path(&c.AdminReadTokenFile, "path of a file with at least 16 bytes"), "reading needs the token of token-file; metrics need none",
			"File with the bearer token that allows reading everything over http, metrics included, but no mutations. Health and the OpenAPI document need no token, and the admin socket never does."},
		{"admin-tls-cert-file", path(&c.AdminTLSCert, "path of a PEM file; with admin-tls-key-file"), "plain http",
			"Certificate chain of the http listener, without the root certificate. If set, the listener accepts TLS 1.2 or later only."},
		{"admin-tls-key-file", path(&c.AdminTLSKey, "path of a PEM file; with admin-tls-cert-file"), "see admin-tls-cert-file",
			"Private key of the certificate in admin-tls-cert-file."},
	}
}

func (c *Config) checkAdmin(v *Faults) {
	if c.HTTP != Off && (c.AdminTLSCert == "") != (c.AdminTLSKey == "") {
		v.Add("admin-tls-cert-file", "admin-tls-cert-file and admin-tls-key-file: both of them or neither")
	}
}

// Shown returns all settings except tenants as text, by name. It contains no secrets, only the
// paths of their files.
func (c *Config) Shown() map[string]string {
	shown := map[string]string{}
	for _, s := range c.settings() {
		shown[s.name] = s.value.String()
	}
	return shown
}
