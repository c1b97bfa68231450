package codegen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

func TestPagesThatLackSomethingAreRefused(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("../../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	whole := string(raw)
	for _, row := range []struct{ name, old, new, want string }{
		{"no bounds", "<!-- wire: bounds -->", "", "no marker for bounds"},
		{"no levels", "<!-- wire: enum Level -->", "", "no marker for enum Level"},
		{"an operation without its messages", "<!-- wire: messages order -->", "", "no marker for the messages of order"},
		{"a marker of nothing", "<!-- wire: bounds -->", "<!-- wire: bonds -->", `nothing is known of "bonds"`},
		{"an unknown enum", "<!-- wire: enum Tier -->", "<!-- wire: enum Tears -->", "no enum Tears"},
		{"an unknown operation", "<!-- wire: messages stats -->", "<!-- wire: messages status -->", "no operation status"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !strings.Contains(whole, row.old) {
				t.Fatalf("the page has no %s", row.old)
			}
			_, err := protocolPage(&schema.Wire, strings.ReplaceAll(whole, row.old, row.new))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
	if _, err := protocolPage(&schema.Wire, whole+"\n<!-- wire: bounds -->\n"); err == nil || !strings.Contains(err.Error(), "has no end") {
		t.Errorf("a marker without an end: %v", err)
	}
}

func TestNamesOfBothLanguages(t *testing.T) {
	for name, want := range map[string]string{
		"TTLMs": "ttl_ms", "KBase": "k_base", "UUIDBytes": "uuid_bytes", "MaxIDs": "max_ids", "CRC32Digests": "crc32_digests",
		"MaxErrorText": "max_error_text", "OK": "ok", "NoGain": "no_gain", "HBM": "hbm",
	} {
		if got := snake(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := messageName("AttachDeviceReply"); got != "attach-device reply" {
		t.Errorf("AttachDeviceReply is called %q", got)
	}
}
