package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// merged applies a JSON Merge Patch (RFC 7396) to a value and returns the result. Both arguments
// must be results of decoded. merged modifies the objects of target.
func merged(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, ok := target.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for name, change := range changes {
		if change == nil {
			delete(object, name)
		} else {
			object[name] = merged(object[name], change)
		}
	}
	return object
}

// decoded decodes a JSON text. Numbers are json.Number, so that they keep all digits.
func decoded(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// unknownName returns the path of a member that exists in the JSON value but not in known, an
// example with all permitted members. It is stricter than encoding/json, which accepts names that
// differ in case.
func unknownName(value, known any) (name string, found bool) {
	object, _ := value.(map[string]any)
	of, _ := known.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if _, ok := of[name]; !ok {
			return name, true
		}
		if below, found := unknownName(object[name], of[name]); found {
			return name + "." + below, true
		}
	}
	return "", false
}
