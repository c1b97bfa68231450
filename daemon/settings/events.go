package settings

import (
	"net/netip"
	"slices"
	"strings"
)

// eventsSettings returns the settings of the KV-event stream for routers, which is off
// without events-bind.
func (c *Config) eventsSettings() []setting {
	return []setting{
		{"events-bind", (*address)(&c.EventsBind), "ADDRESS:PORT", "no events",
			"Where routers subscribe to KV events (ZeroMQ PUB, as vLLM's). They have token ids of prompts, and whoever reaches the port reads them: keep all but routers away."},
		{"events-replay-bind", (*address)(&c.EventsReplayBind), "ADDRESS:PORT", "the address of events-bind, and the next port",
			"Where they get what they missed (ZeroMQ ROUTER)."},
		{"events-pod", (*text)(&c.EventsPod), "1 to 256 bytes without @", "node",
			"What routers call the engine of this node; it stands in topics."},
		{"events-model", (*text)(&c.EventsModel), "at most 256 bytes without @", "as the engine registered it",
			"What routers call the model; it stands in topics. For nodes with one model."},
		{"events-block", (*integer)(&c.EventsBlock), "1 to 65536 tokens", "not allowed",
			"Tokens of a block, as routers hash them."},
		{"events-format", (*text)(&c.EventsFormat), "maps or arrays", "not allowed",
			"How events are encoded: maps as vLLM 0.32 does, which llm-d-kv-cache reads from 0.9 on; arrays as versions before mid-2026. Dynamo reads both."},
		{"events-tenants", &c.EventsTenants, "list of tenants", "nobody's",
			"Whose prompts are told of."},
		{"events-segments", (*toggle)(&c.EventsSegments), "on or off", "not allowed",
			"Whether segments are told of that stand in the middle of prompts too, with a marker; routers that do not know it have no use for them."},
		{"events-memory", &c.EventsMemory, "bytes, 1MiB to 64GiB", "not allowed",
			"What is told may take so much memory, some 14 bytes for each token of a block of 16. What does not fit is not told; readiness says degraded."},
	}
}

// UsesEvents reports whether KV events are published.
func (c *Config) UsesEvents() bool { return c.EventsBind.IsValid() }

// EventsReplay returns the address for requests of missed batches.
func (c *Config) EventsReplay() netip.AddrPort {
	if c.EventsReplayBind.IsValid() || !c.EventsBind.IsValid() {
		return c.EventsReplayBind
	}
	port := c.EventsBind.Port()
	if port != 0 {
		port++
	}
	return netip.AddrPortFrom(c.EventsBind.Addr(), port)
}

func (c *Config) checkEvents(v *faults) {
	v.between("events-block", c.EventsBlock, 1, 1<<16)
	v.oneOf("events-format", c.EventsFormat, "maps", "arrays")
	if c.EventsMemory < MiB || c.EventsMemory > 64*GiB {
		v.add("events-memory", "%v is not between 1MiB and 64GiB", c.EventsMemory)
	}
	if !c.UsesEvents() {
		return
	}
	for _, name := range c.EventsTenants {
		if !slices.ContainsFunc(c.Tenants, func(t Tenant) bool { return t.Name == name }) {
			v.add("events-tenants", "no tenant %.64q is configured: name those whose prompts may be told", name)
		}
	}
	for name, text := range map[string]string{"events-pod": c.EventsPod, "events-model": c.EventsModel} {
		v.plain(name, text)
		if len(text) > 256 || strings.Contains(text, "@") {
			v.add(name, "%.64q has more than 256 bytes, or an @", text)
		}
	}
	if bind, replay := c.EventsBind, c.EventsReplay(); bind.Port() != 0 && (bind == replay || replay.Port() == 0) {
		v.add("events-replay-bind", "%v beside events-bind %v", replay, bind)
	}
	if len(c.EventsTenants) == 0 {
		v.add("events-tenants", "nobody's prompts are told of: name those that may be")
	}
}
