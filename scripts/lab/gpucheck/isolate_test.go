package gpucheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// troubled are parts that end in every way there is.
func troubled() []Part {
	say := func(r *Report) { r.Holds("said before the trouble", nil) }
	return []Part{
		{"crashes", 10 * time.Second, func(_ context.Context, r *Report) error { say(r); panic("of the driver") }},
		{"hangs", time.Second, func(_ context.Context, r *Report) error { say(r); select {} }},
		{"leaves", 10 * time.Second, func(_ context.Context, r *Report) error { say(r); os.Exit(0); return nil }},
		{"babbles", 10 * time.Second, func(context.Context, *Report) error { fmt.Println("not a row"); return nil }},
		{"fails", 10 * time.Second, func(context.Context, *Report) error { return errors.New("the driver's words") }},
		{"follows", 10 * time.Second, func(_ context.Context, r *Report) error { say(r); return nil }},
	}
}

// onePart is what the process of a part does.
func onePart(name string) error {
	var o Options
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	o.Also = troubled()
	return RunPart(context.Background(), &o, name, os.Stdout)
}

// inProcesses has every part run in a process of its own.
func inProcesses(o *Options, part string) (*exec.Cmd, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), partEnv+"="+part)
	cmd.Stdin = strings.NewReader(string(b))
	return cmd, nil
}

func TestAPartThatCrashesOrHangsLosesNothingOfTheOthers(t *testing.T) {
	o := onFake(t)
	o.Also, o.Isolated = troubled(), inProcesses
	o.Only = []string{"crashes", "hangs", "leaves", "babbles", "fails", "follows", "memory in a second process"}
	var saved []int
	o.Save = func(r *Report) error {
		saved = append(saved, len(r.Pending))
		return nil
	}
	r := run(t, o)
	if !slices.Equal(saved, []int{7, 6, 5, 4, 3, 2, 1, 0}) {
		t.Errorf("saved with %v parts pending", saved)
	}
	notes, said := map[string]string{}, 0
	for _, row := range r.Rows {
		if row.Name == "said before the trouble" {
			said++
		}
		if !row.OK {
			notes[row.Name] = row.Note
		}
	}
	if said != 4 {
		t.Errorf("%d rows of 4 that were said before the trouble", said)
	}
	for part, want := range map[string]string{"crashes": "of the driver", "hangs": "stopped after 2s: its time was up", "babbles": "not a row", "fails": "the driver's words"} {
		if !strings.Contains(notes[part], want) {
			t.Errorf("%s: %q, want %q in it", part, notes[part], want)
		}
	}
	if len(notes) != 4 {
		t.Errorf("failures are %q", notes)
	}
	if len(r.Parts) != 7 || r.Parts[0].Name != "memory in a second process" {
		t.Errorf("parts are %v", r.Parts)
	}
}

func TestEveryPartIsSureOfHalfOfItsTime(t *testing.T) {
	parts := []Part{{"a", 4 * time.Minute, nil}, {"b", 4 * time.Minute, nil}, {"c", 4 * time.Minute, nil}}
	left := StandardTime
	for i, want := range []time.Duration{4 * time.Minute, 2 * time.Minute, 2 * time.Minute} { // all of them hang
		got := share(parts[i:], left, StandardTime)
		if got != want {
			t.Errorf("part %d gets %v, want %v", i, got, want)
		}
		left -= got
	}
	if got := share(parts[2:], StandardTime/4, StandardTime/2); got != 2*time.Minute {
		t.Errorf("half the time stretches 4 minutes to %v", got)
	}
	many := &check{Options: Options{Also: slices.Repeat([]Part{{"long", StandardTime, nil}}, 2)}}
	if _, err := many.parts(); !errors.Is(err, errTooMany) {
		t.Errorf("limits of twice the time: %v", err)
	}
}
