package contexts

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestContextsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "contexts.yaml")
	t.Setenv(Environment, path)
	f, err := Load()
	if err != nil || len(f.Contexts) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	f.Put(Context{Name: "a", Admin: "http://a:9400", TokenFile: "/t"})
	f.Put(Context{Name: "b", Admin: "unix:/b"})
	f.Put(Context{Name: "b", Admin: "unix:/c"})
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	back, err := Load()
	if want := (&File{"a", []Context{{"a", "http://a:9400", "/t"}, {"b", "unix:/c", ""}}}); err != nil || !reflect.DeepEqual(back, want) {
		t.Errorf("%+v, %v", back, err)
	}
	if !back.Remove("a") || back.Remove("a") || back.Current != "" {
		t.Errorf("%+v", back)
	}
	back.Put(Context{Name: "-x", Admin: "unix:/c"})
	if err := back.Save(); err == nil {
		t.Error("a name that reads as a flag is kept")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".contexts-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if again, err := Load(); err != nil || len(again.Contexts) != 2 {
		t.Errorf("what was refused has changed the file: %+v, %v", again, err)
	}
}

func TestABrokenFileIsSaidToBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.yaml")
	t.Setenv(Environment, path)
	for text, want := range map[string]string{
		"contexts: [{name: a}]":                                "no admin address",
		"contexts: [{name: a, admin: x}, {name: a, admin: y}]": "defined twice",
		"current: z\ncontexts: []":                             "does not exist",
		"context: []":                                          "line 1: unknown key context",
		"contexts: [{name: \"a\\e\", admin: x}]":               "invalid context name",
		"contexts: {":                                          "line 1: did not find",
		"contexts: [" + strings.Repeat("{name: a, admin: x},", 1e5) + "]": "bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}
