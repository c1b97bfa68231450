package settings

import (
	"net/netip"
	"slices"
	"strings"
)

// eventsSettings returns the settings of the KV events for routers. Without events-bind there are
// no events.
func (c *Config) eventsSettings() []setting {
	return []setting{
		{"events-bind", free((*address)(&c.EventsBind), "ADDRESS:PORT"), "no events",
			"Address at which routers subscribe to KV events (ZeroMQ PUB, as in vLLM). Events contain the token ids of prompts: let only routers reach the port."},
		{"events-replay-bind", free((*address)(&c.EventsReplayBind), "ADDRESS:PORT"), "the address of events-bind, and the next port",
			"Address at which routers request missed events (ZeroMQ ROUTER)."},
		{"events-pod", free((*text)(&c.EventsPod), "1 to 256 bytes without @"), "node",
			"Name of this node's engine for routers; it is part of the topics of events."},
		{"events-model", free((*text)(&c.EventsModel), "at most 256 bytes without @"), "as the engine registered it",
			"Name of the model for routers; it is part of the topics of events. Set it only on nodes that serve one model."},
		{"events-block", count(&c.EventsBlock, 1, 1<<16).as("%s tokens"), "not allowed",
			"Tokens per block, as routers hash them."},
		{"events-format", choice(&c.EventsFormat, "maps", "arrays"), "not allowed",
			"Encoding of events: maps, as in vLLM 0.32 and read by llm-d-kv-cache from 0.9 on; arrays, as in versions before mid-2026. Dynamo reads both."},
		{"events-tenants", free(&c.EventsTenants, "list of tenants"), "none",
			"Tenants whose prompts are published as events."},
		{"events-segments", onOff(&c.EventsSegments), "not allowed",
			"Whether events also cover segments in the middle of prompts, with a marker. Routers that do not know the marker cannot use them."},
		{"events-memory", size(&c.EventsMemory, MiB, 64*GiB), "not allowed",
			"Memory for published blocks, about 14 bytes per token with blocks of 16. Blocks that do not fit are not published and readiness reports degraded."},
	}
}

// UsesEvents reports whether KV events are published.
func (c *Config) UsesEvents() bool { return c.EventsBind.IsValid() }

// EventsReplay returns the address at which routers request batches that they missed.
func (c *Config) EventsReplay() netip.AddrPort {
	if c.EventsReplayBind.IsValid() || !c.EventsBind.IsValid() {
		return c.EventsReplayBind
	}
	return NextPort(c.EventsBind)
}

// NextPort returns an address with the next port; 0, which is any port, stays 0. After 65535 comes 0.
func NextPort(a netip.AddrPort) netip.AddrPort {
	port := a.Port()
	if port != 0 {
		port++
	}
	return netip.AddrPortFrom(a.Addr(), port)
}

func (c *Config) checkEvents(v *Faults) {
	if !c.UsesEvents() {
		return
	}
	for _, name := range c.EventsTenants {
		if !slices.ContainsFunc(c.Tenants, func(t Tenant) bool { return t.Name == name }) {
			v.Add("events-tenants", "tenant %.64q is not configured", name)
		}
	}
	for name, text := range map[string]string{"events-pod": c.EventsPod, "events-model": c.EventsModel} {
		if err := plain(text); err != nil {
			v.Add(name, "%v", err)
		}
		if len(text) > 256 || strings.Contains(text, "@") {
			v.Add(name, "%.64q is longer than 256 bytes or contains @", text)
		}
	}
	if bind, replay := c.EventsBind, c.EventsReplay(); bind.Port() != 0 && (bind == replay || replay.Port() == 0) {
		v.Add("events-replay-bind", "%v conflicts with events-bind %v", replay, bind)
	}
	if len(c.EventsTenants) == 0 {
		v.Add("events-tenants", "required with events-bind: list the tenants whose prompts may be published")
	}
}
