package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// Config is a node's configuration without secrets. The fields before PoolsBytes can change
// while the daemon runs.
type Config struct {
	LogLevel     string           `json:"log_level"`
	PublicBytes  int64            `json:"public_bytes"`  // budget of segments in memory
	PrivateBytes int64            `json:"private_bytes"` // budget of checkpoints in memory
	Quotas       map[string]Quota `json:"quotas"`        // by tenant
	// CanaryShare is the share of spliced requests, from 0 to 1, that engines also recompute to
	// compare the results; nil = each engine uses its own setting. Engines learn it with the
	// reply to their next report of a request.
	CanaryShare *float64 `json:"canary_share,omitempty"`

	PoolsBytes int64             `json:"pools_bytes"` // upper bound of PublicBytes and PrivateBytes together, fixed at the start
	Draining   bool              `json:"draining"`
	Settings   map[string]string `json:"settings"` // settings with which the daemon was started, by name
}

// Quota is the limit of a tenant.
type Quota struct {
	QuotaBytes int64 `json:"quota_bytes"` // in all tiers together; 0 = unlimited
}

// ConfigPatch is a merge patch (RFC 7396) of Config.
type ConfigPatch map[string]any

// etag returns the version of a configuration. A change names the version that it is based on.
func (c *Config) etag() string {
	text, err := json.Marshal(c)
	if err != nil { // strings and numbers only: cannot happen
		panic(fmt.Sprintf("api: cannot encode a configuration: %v", err))
	}
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}

func (from *Shown) getConfig(ctx *fasthttp.RequestCtx, _ string) error {
	if err := noParams(ctx); err != nil {
		return err
	}
	c, err := from.Control.Config()
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return writeConfig(ctx, c)
}

func writeConfig(ctx *fasthttp.RequestCtx, c Config) error {
	ctx.Response.Header.Set("ETag", c.etag())
	return writeJSON(ctx, c)
}

const restart = "is fixed at the start: change it in the daemon's settings and restart"

const mergePatch = "application/merge-patch+json"

func (s *Server) patchConfig(ctx *fasthttp.RequestCtx, _ string) error {
	dry, err := onlyDryRun(ctx)
	if err != nil {
		return err
	}
	if media, _, err := mime.ParseMediaType(string(ctx.Request.Header.ContentType())); err != nil || media != mergePatch {
		return newProblem(fasthttp.StatusUnsupportedMediaType, CodeMediaType, "a change of the configuration is "+mergePatch)
	}
	// The configuration must not change between the check of the version and the change.
	s.configuring.Lock()
	defer s.configuring.Unlock()
	before, err := s.shown().Control.Config()
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	switch seen := string(ctx.Request.Header.Peek("If-Match")); {
	case seen == "":
		return newProblem(fasthttp.StatusPreconditionRequired, CodePrecondition, "If-Match is required, with the ETag of GET or *")
	case seen != "*" && !slices.Contains(splitTags(seen), before.etag()):
		return newProblem(fasthttp.StatusPreconditionFailed, CodeChanged, "the configuration has changed: get it again")
	}
	to, err := patched(&before, ctx.PostBody())
	if err != nil {
		return err
	}
	after, err := s.shown().Control.ChangeConfig(to, dry)
	s.audit(ctx, change{dry: dry, before: before.changeable(), after: after.changeable()}, err)
	if err != nil {
		return fmt.Errorf("change configuration: %w", err)
	}
	return writeConfig(ctx, after)
}

func splitTags(header string) []string {
	return strings.FieldsFunc(header, func(r rune) bool { return r == ',' || r == ' ' })
}

// changeable returns the part of a configuration that may change, for the log.
func (c *Config) changeable() map[string]any {
	return map[string]any{"log_level": c.LogLevel, "canary_share": c.CanaryShare, "public_bytes": c.PublicBytes, "private_bytes": c.PrivateBytes, "quotas": c.Quotas}
}

// patched applies a merge patch to a configuration. If the patch changes values that are fixed
// while the daemon runs, the error names all of them.
func patched(c *Config, patch []byte) (Config, error) {
	was, err := json.Marshal(c)
	if err != nil {
		return Config{}, err
	}
	bad := func(format string, args ...any) (Config, error) {
		return Config{}, newProblem(fasthttp.StatusBadRequest, CodeInvalid, fmt.Sprintf(format, args...))
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(patch, &object); err != nil || object == nil {
		return bad("the change is not a JSON object")
	}
	var fixed, wrong []Violation
	for _, name := range []string{"log_level", "public_bytes", "private_bytes"} {
		if value, given := object[name]; given && string(value) == "null" {
			wrong = append(wrong, Violation{name, "cannot be null"})
		}
	}
	to, err := mergedInto(was, patch)
	if p, ok := errors.AsType[*Problem](err); ok {
		return Config{}, p
	}
	if err != nil {
		return bad("%v", err)
	}
	if to.PoolsBytes != c.PoolsBytes {
		fixed = append(fixed, Violation{"pools_bytes", restart})
	}
	if to.Draining != c.Draining {
		fixed = append(fixed, Violation{"draining", "is changed with drain"})
	}
	if _, given := object["settings"]; given {
		for _, key := range differing(c.Settings, to.Settings) {
			fixed = append(fixed, Violation{"settings." + key, restart})
		}
	}
	if share := to.CanaryShare; share != nil && !(*share >= 0 && *share <= 1) {
		wrong = append(wrong, Violation{"canary_share", "is not 0 to 1 or null"})
	}
	for _, tenant := range slices.Sorted(maps.Keys(to.Quotas)) {
		if _, known := c.Quotas[tenant]; !known {
			wrong = append(wrong, Violation{"quotas." + tenant, "no such tenant"})
		}
	}
	for tenant := range c.Quotas { // a removed quota becomes 0, which is unlimited
		if _, stays := to.Quotas[tenant]; !stays {
			if to.Quotas == nil {
				to.Quotas = map[string]Quota{}
			}
			to.Quotas[tenant] = Quota{}
		}
	}
	switch {
	case len(wrong) > 0:
		return Config{}, Invalid(wrong...)
	case len(fixed) > 0:
		return Config{}, unsupported(fixed...)
	}
	return to, nil
}

// mergedInto applies a merge patch to an encoded configuration. Unknown fields are an error.
func mergedInto(was, patch []byte) (to Config, err error) {
	target, err := decoded(was)
	if err != nil {
		return to, err
	}
	change, err := decoded(patch)
	if err != nil {
		return to, err
	}
	now := merged(target, change)
	text, err := json.Marshal(now)
	if err != nil {
		return to, err
	}
	if err := checkQuotas(now); err != nil {
		return to, err
	}
	if err := json.Unmarshal(text, &to); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			err = fmt.Errorf("%s cannot be a %s", wrong.Field, wrong.Value)
		}
		return to, err
	}
	if text, err = json.Marshal(&to); err != nil {
		return to, err
	}
	known, err := decoded(text)
	if err != nil {
		return to, err
	}
	if name, found := unknownName(now, known); found {
		if _, atStart := to.Settings[strings.ReplaceAll(name, "_", "-")]; atStart {
			return to, Unsupported(name, restart)
		}
		return to, fmt.Errorf("unknown setting %q: a running daemon can change log_level, public_bytes, private_bytes, quotas.TENANT.quota_bytes and canary_share", name)
	}
	return to, nil
}

// checkQuotas names a quota of the wrong type, which encoding/json does not.
func checkQuotas(config any) error {
	object, _ := config.(map[string]any)
	quotas, _ := object["quotas"].(map[string]any)
	for _, tenant := range slices.Sorted(maps.Keys(quotas)) {
		quota, ok := quotas[tenant].(map[string]any)
		if !ok {
			return fmt.Errorf("quotas.%s is not an object: set quotas.%s.quota_bytes", tenant, tenant)
		}
		if n, given := quota["quota_bytes"]; given {
			number, _ := n.(json.Number)
			if _, err := number.Int64(); err != nil {
				return fmt.Errorf("quotas.%s.quota_bytes is not a number of bytes", tenant)
			}
		}
	}
	return nil
}

// differing returns the keys whose values differ between two maps.
func differing(a, b map[string]string) []string {
	keys := map[string]bool{}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			keys[k] = true
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys[k] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}
