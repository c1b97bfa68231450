package schema

import (
	"strings"
	"testing"
)

func TestTheProtocolIsValid(t *testing.T) {
	if err := Wire.Validate(); err != nil {
		t.Fatal(err)
	}
}

// small is a protocol of one operation that changes may break.
func small() Protocol {
	return Protocol{
		Constants: []Constant{{Name: "MaxKeys", Value: 4}},
		Enums: []Enum{
			{Name: "Feature", Prefix: "Feature", Values: []Value{{Name: "Prompt", Number: 1}}},
			{Name: "Way", Prefix: "Way", Values: []Value{{Name: "Handle", Number: 1}}},
		},
		Messages: []Message{
			{Name: "AskRequest", Body: body(u8("Way"), u32s("Keys", "MaxKeys"), u32s("Tokens", "MaxKeys", rows("Keys")))},
			{Name: "AskReply"},
		},
		Operations: []Operation{{Number: 1, Name: "ask", Request: "AskRequest", Reply: "AskReply"}},
	}
}

func TestWhatNoCodecCouldKeepIsFound(t *testing.T) {
	for _, row := range []struct {
		name string
		bend func(p *Protocol)
		want string
	}{
		{"an op number twice", func(p *Protocol) {
			p.Operations = append(p.Operations, Operation{Number: 1, Name: "tell", Request: "AskRequest", Reply: "AskReply"})
		}, "a number or name that is none, or is taken"},
		{"an op without a message", func(p *Protocol) { p.Operations[0].Reply = "Nothing" }, "no message Nothing"},
		{"a message without an op", func(p *Protocol) { p.Messages = append(p.Messages, Message{Name: "Lost"}) }, "message Lost belongs to no operation"},
		{"a name twice", func(p *Protocol) { p.Constants = append(p.Constants, p.Constants[0]) }, "MaxKeys is declared twice"},
		{"a number twice", func(p *Protocol) {
			p.Enums[1].Values = append(p.Enums[1].Values, Value{Name: "Other", Number: 1})
		}, "Handle and Other are both 1"},
		{"a column without a bound", func(p *Protocol) { p.Messages[1].Body = body(u8s("Rows", "")) }, "Rows has no bound"},
		{"an unknown bound", func(p *Protocol) { p.Messages[1].Body = body(u8s("Rows", "MaxRows")) }, "no constant MaxRows"},
		{"a scalar behind a column", func(p *Protocol) { p.Messages[1].Body = body(u8s("Rows", "MaxKeys"), u8("Late")) }, "Late is a scalar after a column"},
		{"rows of nothing", func(p *Protocol) { p.Messages[1].Body = body(u8s("Rows", "MaxKeys", rows("Keys"))) }, "no such column"},
		{"a check of nothing", func(p *Protocol) { p.Messages[1].Body = body(Check{Field: "Way", Exactly: "MaxKeys"}) }, "a check of Way, which is not there"},
		{"a value of no enum", func(p *Protocol) {
			p.Messages[0].Body = body(u8("Way"), Check{Field: "Way", OneOf: []string{"WayBack"}})
		}, "no constant WayBack"},
		{"a section of no feature", func(p *Protocol) {
			p.Messages[0].Sections = []Section{{Name: "More", Struct: "AskMore", Feature: "More", Body: body(u8("Any"))}}
		}, `feature "More" is none, or is taken`},
		{"two sections of one feature", func(p *Protocol) {
			p.Messages[0].Sections = []Section{{Name: "A", Struct: "AskA", Feature: "Prompt"}, {Name: "B", Struct: "AskB", Feature: "Prompt"}}
		}, `feature "Prompt" is none, or is taken`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := small()
			if err := p.Validate(); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			row.bend(&p)
			if err := p.Validate(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}
