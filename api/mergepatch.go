package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// merged applies a JSON Merge Patch (RFC 7396) to a value and returns the result. Both must
// come from decoded; objects of target are modified.
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

// decoded returns a JSON value with numbers as written.
func decoded(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// unknownName returns a member of the objects in value that the objects in known do not
// have. encoding/json would accept one that differs only in case.
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
