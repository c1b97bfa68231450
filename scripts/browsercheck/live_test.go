package browsercheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

func TestWhatHappensIsShownAtOnce(t *testing.T) {
	for _, way := range []string{"streamed", "asked for"} {
		t.Run(way, func(t *testing.T) {
			d, p := standIn(t), openTab(t)
			mode := "live"
			if way != "streamed" {
				d.set(func() { d.mu.streams = false })
				mode = "every 3 s"
			}
			p.open(d.url("#/"))
			p.says("#happened", "sglang scheduler attached")
			p.says("#live", mode)
			d.publish(map[string]any{"kind": "published", "object": "segment", "key": keyOf("new"), "tenant": "acme", "text": "a segment nobody has seen before"})
			p.says("#happened", "a segment nobody has seen before")
			p.goTo("#/events?kind=published")
			p.says("#events", "a segment nobody has seen before")
			if strings.Contains(p.text("#events"), "was lost") {
				t.Error("events of other kinds are listed")
			}
		})
	}
}

// A busy daemon does not make the page stand still.
func TestThousandsOfEventsDoNotStopThePage(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/events"))
	p.says("#events", "sglang scheduler attached")
	drawn := `(window.drawn ??= (new MutationObserver(() => window.times++).observe(document.querySelector('main'), { subtree: true, childList: true, characterData: true }), window.times = 0, true))`
	eval[bool](p, drawn)
	const n = 5000
	for i := range n {
		d.publish(map[string]any{"kind": "published", "object": "segment", "key": segmentKey(i), "text": fmt.Sprintf("number %d of many", i+1)})
	}
	p.says("#events", fmt.Sprintf("number %d of many", n))
	if times := eval[int](p, "window.times"); times > n/10 {
		t.Errorf("the page was drawn %d times for %d events", times, n)
	}
	if rows := eval[int](p, `document.querySelectorAll('#events tbody tr').length`); rows > 500 {
		t.Errorf("%d rows are drawn", rows)
	}
	if lost := p.text("#events .trouble"); lost != "" {
		t.Errorf("the page says: %s", lost)
	}
}

// Numbers of the first page follow the requests, without a hand on it.
func TestNumbersFollowTheRequests(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/"))
	p.says("#hit-ratio", "since counting began: 54.0 %")
	d.set(func() {
		usage := d.mu.answers["overview"].(map[string]any)["usage"].(map[string]any)
		usage["reused_tokens"], usage["computed_tokens"] = 33_000_000, 770_000
	})
	d.publish(map[string]any{"kind": "request", "text": "one more"})
	p.says("#hit-ratio", "since counting began: 98.3 %")
}

// What is searched for and sorted stays as it is while lists are asked for again.
func TestSortingStaysWhileListsAreRefreshed(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/requests"))
	p.says("#requests", "chatcmpl-7f31")
	first := `document.querySelector('#requests tbody tr').innerText`
	eval[chromedp.Void](p, `void [...document.querySelectorAll('#requests th button')].find((b) => b.innerText.startsWith('First token')).click()`)
	p.until("the slowest is first", first+`.includes('#10')`)
	d.field("requests", "name", "told anew")
	d.publish(map[string]any{"kind": "request", "text": "one more"})
	p.says("#requests", "told anew")
	if row := eval[string](p, first); !strings.Contains(row, "#10") {
		t.Errorf("the first row is %q", row)
	}
}

// Whoever is writing into a field is not disturbed by what happens meanwhile.
func TestHalfWrittenSearchesStay(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/requests?way=splice"))
	p.says("#requests", "chatcmpl-7f31")
	p.until("the address is in the fields", `document.querySelector('#requests [name=way]').value === 'splice'`)
	field := `document.querySelector('#requests [name=tenant]')`
	eval[chromedp.Void](p, `void `+field+`.focus()`)
	p.run(chromedp.KeyEvent("ac"))
	d.field("requests", "name", "told anew")
	d.publish(map[string]any{"kind": "request", "text": "one more"})
	p.says("#requests", "told anew")
	p.run(chromedp.KeyEvent("me\r"))
	p.until("the search is the address", `location.hash === '#/requests?tenant=acme&way=splice'`)
	if at := eval[string](p, `document.activeElement.name ?? document.activeElement.tagName`); at != "tenant" {
		t.Errorf("after the search the focus is on %s", at)
	}
	// What was never searched for goes with the rest.
	empty := field + `.value === '' && document.querySelector('#requests [name=way]').value === ''`
	p.goTo("#/requests?way=splice")
	p.until("the fields follow the address", field+`.value === '' && document.querySelector('#requests [name=way]').value === 'splice'`)
	eval[chromedp.Void](p, field+`.value = 'ac'; void [...document.querySelectorAll('#requests .filters a')].find((a) => a.innerText === 'Clear').click()`)
	p.until("Clear empties the fields", empty)
	// Nor does it matter how soon one address follows another.
	eval[chromedp.Void](p, field+`.value = 'acme'; location.hash = '#/requests?tenant=acme'; void (location.hash = '#/requests')`)
	p.until("the fields follow the last address", empty)
}

func TestHalfWrittenSearchOfEventsStays(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.open(d.url("#/events"))
	p.says("#events", "sglang scheduler attached")
	eval[chromedp.Void](p, `void document.querySelector('#events [name=tenant]').focus()`)
	p.run(chromedp.KeyEvent("ac"))
	d.publish(map[string]any{"kind": "published", "object": "segment", "key": keyOf("new"), "tenant": "acme", "text": "a segment nobody has seen before"})
	p.says("#events", "a segment nobody has seen before")
	p.run(chromedp.KeyEvent("me\r"))
	p.until("the search is the address", `location.hash === '#/events?tenant=acme'`)
}

// asked counts how often a path was.
func (d *double) asked(path string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.served[path]
}

func TestEmptyDaemonSaysWhatToDo(t *testing.T) {
	d, p := standIn(t), openTab(t)
	d.empty()
	p.open(d.url("#/"))
	p.says("#begin", "No engine is attached")
	p.says("#begin", "splicectl demo -socket /run/spliced/spliced.sock")
	for _, page := range pages {
		if strings.Count(page.hash, "/") > 1 {
			continue // of one object: there is none
		}
		p.goTo(page.hash)
		p.says("h1", page.title)
		p.settled()
		p.clean()
	}
	// And it fills by itself.
	d.set(func() {
		overview := fixture(t, "overview")
		d.mu.answers["overview"] = overview
	})
	p.goTo("#/")
	p.says("#numbers", "97.5 GiB")
	p.until("there is nothing to begin any more", `!document.querySelector('#begin')`)
}

func TestDeadDaemonIsSaidAndItsReturnIsSeen(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.networkErrors = true
	p.open(d.url("#/"))
	p.says("#numbers", "97.5 GiB")
	d.die()
	p.says("#dead", "The daemon does not answer.")
	p.says("#dead", "was last good at")
	p.says("#state", "no answer")
	// What was known stays to be read.
	p.says("#numbers", "97.5 GiB")
	p.goTo("#/canary")
	p.says("main", "the daemon does not answer")
	p.goTo("#/")
	last := eval[string](p, `document.querySelector('#dead time').dateTime`)
	at, err := time.Parse(time.RFC3339, last)
	if err != nil || time.Since(at) > time.Minute || time.Since(at) < 0 {
		t.Errorf("last good at %q: %v", last, err)
	}
	d.set(func() {
		d.mu.answers["overview"].(map[string]any)["shared_bytes_saved"] = 5 << 30
		status := d.mu.answers["status"].(map[string]any)
		status["boot_epoch"], status["started"] = "7", time.Now().UTC().Format(time.RFC3339)
		d.mu.events = []map[string]any{{"id": 1, "at": time.Now().UTC().Format(time.RFC3339), "kind": "attached", "text": "an engine came back"}}
	})
	d.revive()
	p.until("the strip is gone", `!document.querySelector('#dead')`)
	p.says("#restarted", "The daemon was restarted")
	p.says("#numbers", "5 GiB")
	p.says("#happened", "an engine came back") // though ids began anew
	p.says("#live", "live")
	p.clean()
}

// A daemon of a version before: pages say what it does not have, and show the rest.
func TestWhatADaemonDoesNotHaveIsSaid(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.networkErrors = true
	d.set(func() {
		for _, path := range []string{"overview", "requests", "usage", "events", "leases", "config", "checkpoints/" + keyOf("cp1")} {
			d.mu.absent[path] = true
		}
	})
	p.open(d.url("#/"))
	p.says("#why", "does not have")
	p.says("#tiers", "52 GiB of 64 GiB")
	p.says("#live", "refreshed")
	p.says(`[data-question="shared"]`, "2 GiB") // as the metrics have it
	for hash, want := range map[string][2]string{
		"#/requests":                      {"#requests", "does not have"},
		"#/tenants":                       {"#quotas", "acme"},
		"#/connections":                   {"#leases", "does not have"},
		"#/events":                        {"#events", "does not have"},
		"#/decisions":                     {"#config", "does not have"},
		"#/checkpoints/" + keyOf("cp1"):   {"#checkpoint", "Extends"}, // out of the listing
		"#/connections?show=engines":      {"#engines", "vllm 0.12.1"},
		"#/segments/" + keyOf("not held"): {"#segment", "not held"},
	} {
		p.goTo(hash)
		p.says(want[0], want[1])
		p.clean()
	}
	if n := d.asked("events"); n > 2 {
		t.Errorf("events were asked for %d times of who has none", n)
	}
}

func TestTokenIsAskedForAndKeptInTheTab(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.networkErrors = true
	const token = "correct horse battery"
	d.set(func() { d.mu.token = token })
	p.open(d.url("#/tenants"))
	p.says("main", "A token, please")
	p.until("the field has the focus", `document.activeElement.name === 'token'`)
	p.run(chromedp.KeyEvent("wrong\r"))
	p.says("main", "The token was not accepted.")
	eval[chromedp.Void](p, `void (document.querySelector('[name=token]').value = '', document.querySelector('[name=token]').focus())`)
	p.run(chromedp.KeyEvent(token + "\r"))
	p.says("#usage", "beta")
	p.says("#live", "live") // the stream sends it, too
	if kept := eval[string](p, `JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie, location.href.includes('horse')])`); kept != fmt.Sprintf(`[{"spliced-token":%q},{},"",false]`, token) {
		t.Errorf("kept: %s", kept)
	}
	p.run(chromedp.Reload())
	p.says("#usage", "beta")
	other := openTab(t)
	other.networkErrors = true
	other.open(d.url("#/tenants"))
	other.says("main", "A token, please")
}

// A daemon that answers nobody off loopback says which setting would let it.
func TestRefusalIsShown(t *testing.T) {
	d, p := standIn(t), openTab(t)
	p.networkErrors = true
	d.set(func() { d.mu.refusal = "off loopback this is not served without a token: set -admin-read-token-file" })
	p.open(d.url("#/tenants"))
	p.says("#refused", "set -admin-read-token-file")
	d.set(func() { d.mu.refusal = "" })
	p.says("#usage", "beta") // when it was set
}

func TestItWorksBehindAPathPrefix(t *testing.T) {
	d, p := standIn(t), openTab(t)
	d.prefix = "/api/v1/namespaces/x/pods/y:9400/proxy"
	p.open(d.url("#/"))
	p.says("#numbers", "97.5 GiB")
	p.says("#live", "live")
	p.goTo("#/disk")
	p.says("#disk", "14.2 ms")
}
