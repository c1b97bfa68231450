package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// TestMergePatch has the cases of appendix A of RFC 7396, and numbers that no float64 holds.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	for _, test := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":9007199254740993}`, `{"b":9223372036854775807}`, `{"a":9007199254740993,"b":9223372036854775807}`},
	} {
		target, err := decoded([]byte(test[0]))
		patch, patchErr := decoded([]byte(test[1]))
		must(t, errors.Join(err, patchErr))
		if got, err := json.Marshal(merged(target, patch)); err != nil || string(got) != test[2] {
			t.Errorf("%s with %s: %s, %v; want %s", test[0], test[1], got, err, test[2])
		}
	}
}

func TestAConfigurationIsPatched(t *testing.T) {
	t.Parallel()
	share := 0.5
	was := Config{
		LogLevel: "info", PublicBytes: 1<<60 + 1, PrivateBytes: 2, PoolsBytes: 3, CanaryShare: &share,
		Quotas: map[string]Quota{"a": {5}, "B": {6}}, Settings: map[string]string{"x": "<1>", "lease-ttl": "1m0s"},
	}
	to, err := patched(&was, []byte(`{"log_level": "debug", "canary_share": null, "quotas": {"a": null, "B": {"quota_bytes": 7}}}`))
	want := was
	want.LogLevel, want.CanaryShare, want.Quotas = "debug", nil, map[string]Quota{"a": {0}, "B": {7}}
	if err != nil || !reflect.DeepEqual(to, want) {
		t.Errorf("%+v, %v", to, err)
	}
	for patch, message := range map[string]string{
		`null`:                                      "not a JSON object",
		`[1]`:                                       "not a JSON object",
		`{"log_level": "debug"} {}`:                 "not a JSON object",
		`{"log_levels": "debug"}`:                   "log_levels",
		`{"LOG_LEVEL": "debug"}`:                    "LOG_LEVEL",
		`{"log_level": 1}`:                          "log_level",
		`{"public_bytes": 1.5}`:                     "public_bytes cannot be a number 1.5",
		`{"canary_share": "much"}`:                  "canary_share cannot be a string",
		`{"log_lvl": "debug"}`:                      `unknown setting "log_lvl": a running daemon can change log_level, public_bytes,`,
		`{"lease_ttl": "1m"}`:                       "422 unsupported: 1 field cannot change while the daemon runs; lease_ttl: is fixed at the start: change it in the daemon's settings and restart",
		`{"quotas": {"a": {"bytes":1}}}`:            "bytes",
		`{"quotas": {"a": {"Quota_Bytes":1}}}`:      "quotas.a.Quota_Bytes",
		`{"quotas": {"b": {"quota_bytes": 1}}}`:     "400 invalid: 1 bad field; quotas.b: no such tenant",
		`{"quotas": {"a": 1}}`:                      "400 invalid: quotas.a is not an object: set quotas.a.quota_bytes",
		`{"quotas": {"a.foo": 1}}`:                  "quotas.a.foo is not an object",
		`{"quotas": {"a": {"quota_bytes": ""}}}`:    "quotas.a.quota_bytes is not a number",
		`{"quotas": {"a": {"quota_bytes": 1.5}}}`:   "quotas.a.quota_bytes is not a number",
		`{"log_level": null, "public_bytes": null}`: "2 bad fields; log_level: cannot be null; public_bytes: cannot be null",
		`{"canary_share": 1.5}`:                     "1 bad field; canary_share: is not 0 to 1",
		`{"settings": {"x": "2"}}`:                  "cannot change",
		`{"pools_bytes": 4}`:                        "cannot change",
	} {
		if to, err := patched(&was, []byte(patch)); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %+v, %v", patch, to, err)
		}
	}
	if was.LogLevel != "info" || len(was.Quotas) != 2 || was.Quotas["a"].QuotaBytes != 5 {
		t.Errorf("the configuration from before was changed: %+v", was)
	}
}
