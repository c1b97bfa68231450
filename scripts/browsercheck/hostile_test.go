package browsercheck

import (
	"strings"
	"testing"
)

// Clients, tenants and models are called what somebody else likes.
func TestHostileNamesStayText(t *testing.T) {
	names := map[string]string{
		"markup":    `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`,
		"quotes":    `"><svg onload=window.hacked=1>'${window.hacked=1}{{7*7}}`,
		"direction": "abc\u202egpj.exe\u2066\u061c\u200f",
		"arabic":    "مستأجر كبير جدا",
		"control":   "a\x00b\x1b[31mred\r\nnext\ttab\u2028line",
		"long":      strings.Repeat("x", 10<<10),
		"wide":      strings.Repeat("𒐫﷽", 500),
		"object":    "__proto__",
		"link":      "javascript:window.hacked=1",
	}
	for kind, name := range names {
		t.Run(kind, func(t *testing.T) {
			d, p := standIn(t), openTab(t)
			for _, at := range [][2]string{
				{"usage", "tenant"}, {"usage", "model"}, {"requests", "tenant"}, {"requests", "model"}, {"requests", "name"}, {"requests", "client"}, {"requests", "way"},
				{"requests", "prefix_reason"}, {"connections", "client"}, {"profiles", "model"}, {"leases", "client"}, {"leases", "tenant"}, {"leases", "object"}, {"canaries", "tenant"}, {"canaries", "model"},
				{"canaries", "why"}, {"decisions", "tenant"}, {"decisions", "why"}, {"decisions", "what"}, {"checkpoints", "tenant"}, {"checkpoints", "model"}, {"checkpoints", "kind"}, {"status", "node"}, {"status", "version"},
				{"status", "socket"}, {"status", "device"}, {"cluster", "name"}, {"cluster", "files_error"}, {"config", "eviction"}, {"pools", "device"},
			} {
				d.field(at[0], at[1], name)
			}
			d.set(func() {
				for _, list := range []struct{ in, under, field string }{
					{"pools", "tenants", "tenant"}, {"requests", "ways", "way"}, {"requests", "spans", "reason"}, {"requests", "spans", "tier"}, {"requests", "spans", "from"},
				} {
					for _, item := range d.items(list.in) {
						for _, inner := range item.(map[string]any)[list.under].([]any) {
							inner.(map[string]any)[list.field] = name
						}
					}
				}
				for _, m := range d.mu.answers["cluster"].(map[string]any)["members"].([]any) {
					m.(map[string]any)["name"], m.(map[string]any)["unusable"], m.(map[string]any)["version"] = name, name, name
				}
				for _, c := range d.mu.answers["status"].(map[string]any)["checks"].([]any) {
					c.(map[string]any)["detail"] = name
				}
				for _, e := range d.mu.events {
					e["text"], e["tenant"], e["client"], e["why"], e["policy"] = name, name, name, name, name
				}
				for _, p := range d.items("profiles") {
					p.(map[string]any)["engines"] = []any{name, name}
				}
				for _, c := range d.items("connections") {
					c.(map[string]any)["tenants"] = []any{name, name, name}
				}
				usage := d.mu.answers["overview"].(map[string]any)["usage"].(map[string]any)
				usage["missed"] = map[string]any{name: 1000, "unknown": 5}
			})
			p.open(d.url("#/"))
			for _, page := range pages {
				p.goTo(page.hash)
				p.says("h1", page.title)
				p.settled()
				p.clean()
				if bad := eval[string](p, `(() => {
					if (window.hacked) return 'code of a name ran';
					const strange = document.querySelector('main img, main script, main svg, main iframe, main object, main embed, main style, main link, a[href^="javascript"]');
					if (strange) return 'a name became ' + strange.outerHTML.slice(0, 200);
					const text = document.body.innerText;
					if (/[\u0000-\u0008\u001b\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(text)) return 'a control character is shown as it is';
					const long = Math.max(...[...document.querySelectorAll('[title]')].map((e) => e.title.length));
					if (long > 5000) return 'a title of ' + long + ' characters';
					const name = document.querySelector('main bdi.name');
					if (name && !name.closest('.facts') && name.getBoundingClientRect().height > 40) return 'a name makes its row ' + name.getBoundingClientRect().height + ' pixels high';
					return '';
				})()`); bad != "" {
					t.Errorf("%s: %s", page.hash, bad)
				}
			}
		})
	}
}

// A key in the address is somebody else's text, too.
func TestHostileAddressesStayText(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.networkErrors = true
	for _, hash := range []string{
		`#/segments/<img src=x onerror=window.hacked=1>`, `#/segments/%3Cimg%20src=x%20onerror=window.hacked=1%3E`, `#/requests/..%2f..%2fstatus`, `#/checkpoints/%E0%A4%A`,
		`#/segments?key=<script>window.hacked=1</script>&tenant="><script>`, `#/nowhere`, `#/__proto__`, `#/constructor/x?show=%22]`, `#//////`, `#/decisions?limit=javascript:1&what=x`,
	} {
		p.open("about:blank")
		p.open(d.url(hash))
		p.until("something is shown", `document.querySelector('main')?.innerText.length > 10`)
		if eval[bool](p, `Boolean(window.hacked || document.querySelector('main img, main script'))`) {
			t.Errorf("%s became more than text", hash)
		}
	}
}
