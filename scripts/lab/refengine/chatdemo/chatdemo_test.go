package chatdemo

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// script is two conversations of few words: a fork, a tool result and another
// answer among them.
func script() *Script {
	return &Script{
		Systems: []string{"You are brief. Look things up first."},
		Steps: []Step{
			{Chat: "a", Kind: First, Text: "What is it?"},
			{Chat: "a", Kind: Tool, Text: "lookup: it is a cat"},
			{Chat: "b", Kind: First, Text: "Who?"},
			{Chat: "a", Kind: Regenerate},
			{Chat: "c", Kind: Fork, From: "a", Keep: 2, Text: "And the dog?"},
			{Chat: "a", Kind: Next, Text: "Thank you."},
		},
	}
}

// memory keeps states in this process and advises to keep every end.
type memory struct {
	refengine.MemoryPrefixes
	spoil bool // loaded states are wrong
}

func (s *memory) Load(prompt []uint32, positions []int) (*State, error) {
	st, err := s.MemoryPrefixes.Load(prompt, positions)
	if st != nil && s.spoil {
		st.Layers[0].S[0]++
	}
	return st, err
}

func (s *memory) Advise(all []uint32, from, _ int, _ []int, _ []Sample) ([]int, int, error) {
	if at := len(all) - len(all)%adviseBlock; at > from {
		return []int{at}, 0, nil
	}
	return nil, 0, nil
}

func (s *memory) Kept() (int, int64) { return len(s.MemoryPrefixes), int64(len(s.MemoryPrefixes)) }

func runInMemory(t *testing.T, s *Script, spoil bool) (*Report, error) {
	t.Helper()
	m, err := model("test")
	if err != nil {
		t.Fatal(err)
	}
	return run(t.Context(), Options{Script: s}, func(way string) (*engine, error) {
		store := &memory{refengine.MemoryPrefixes{}, spoil}
		return &engine{m: m, store: store, plan: map[string]planner{WayWhole: whole{}, WayBlock: blockTokens, WayEvery: everyMessage{}, WayAdvised: advised{}}[way]}, nil
	})
}

func TestEveryWayGivesTheSameAnswers(t *testing.T) {
	r, err := runInMemory(t, script(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Failed(); err != nil || r.Prompts != 6 || r.Chats != 3 {
		t.Errorf("%v: %d prompts of %d chats", err, r.Prompts, r.Chats)
	}
	none, every, advised := r.Way(WayWhole), r.Way(WayEvery), r.Way(WayAdvised)
	if none.ReusedTokens != 0 || none.ComputedTokens != none.PromptTokens || none.CheckpointsSaved != 0 {
		t.Errorf("no cache: %+v", none)
	}
	// System prompt of a, then of b; all of a but its last message thrice; two
	// messages of a and the system prompt in the fork.
	s := script()
	system, first := len(s.Systems[0]), len(asked("user", "What is it?").tokens)
	turn := system + first + answerTokens
	tool := turn + len(asked("tool", "lookup: it is a cat").tokens) + answerTokens
	if want := turn + system + turn + turn + tool; every.ReusedTokens != want {
		t.Errorf("every message: reused %d tokens, want %d: %+v", every.ReusedTokens, want, every)
	}
	if advised.ReusedTokens <= none.ReusedTokens || advised.ComputedTokens+advised.ReusedTokens != advised.PromptTokens {
		t.Errorf("advised: %+v", advised)
	}
	if len(every.Kinds) != len(kinds) || every.Kinds[0].Prompts != 2 {
		t.Errorf("kinds: %+v", every.Kinds)
	}
	var text strings.Builder
	if err := r.Print(&text); err != nil || !strings.Contains(text.String(), "bit for bit") {
		t.Errorf("%v\n%s", err, &text)
	}
	for _, line := range strings.Split(text.String(), "\n") {
		if line != r.Sentence && len([]rune(line)) > 110 {
			t.Errorf("line of %d columns: %s", len([]rune(line)), line)
		}
	}
	if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"checkpoints_saved"`) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestAWrongStateIsNoticed(t *testing.T) {
	s := script()
	s.Steps = s.Steps[:2]
	r, err := runInMemory(t, s, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Failed(); !errors.Is(err, ErrChanged) || !strings.Contains(r.Sentence, "NOT") {
		t.Errorf("%v; %s", err, r.Sentence)
	}
}

func TestAnotherAnswerIsAnother(t *testing.T) {
	logits := []float32{1, 5, 5, 3}
	for n, want := range []uint32{1, 2, 3, 0, 1} {
		if got := ranked(logits, n); got != want {
			t.Errorf("rank %d is token %d, want %d", n, got, want)
		}
	}
	m, err := model("test")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{m: m, plan: whole{}}
	first, err := e.serve(tokens("Hello there"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := e.serve(tokens("Hello there"), nil, 1)
	if err != nil || first.answer[0] == second.answer[0] || len(second.answer) != answerTokens {
		t.Errorf("%v: %d and %d", err, first.answer, second.answer)
	}
}

func TestTheShippedScriptHoldsTogether(t *testing.T) {
	s := Shipped()
	chats, seen, longest := map[string]*chat{}, map[Kind]int{}, 0
	for i, step := range s.Steps {
		c, err := s.apply(chats, step)
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		prompt, cuts := c.prompt()
		longest = max(longest, len(prompt))
		if len(cuts) != len(c.messages) || cuts[0] != len(s.Systems[0]) && cuts[0] != len(s.Systems[1]) {
			t.Fatalf("step %d: cuts %v", i+1, cuts)
		}
		seen[step.Kind]++
		c.messages = append(c.messages, message{tokens: make([]uint32, answerTokens), answer: true})
	}
	for _, kind := range kinds {
		if seen[kind] < 3 {
			t.Errorf("%d x %s", seen[kind], kind)
		}
	}
	if longest > 1024*adviseBlock {
		t.Errorf("a prompt of %d tokens has more blocks than one match asks for", longest)
	}
}

func TestScriptsThatCannotBe(t *testing.T) {
	for name, steps := range map[string][]Step{
		"goes on before":   {{Chat: "a", Kind: Next, Text: "x"}},
		"begins twice":     {{Chat: "a", Kind: First}, {Chat: "a", Kind: First}},
		"no such system":   {{Chat: "a", Kind: First, System: 1}},
		"forks nothing":    {{Chat: "a", Kind: Fork, From: "b", Keep: 1}},
		"forks a question": {{Chat: "a", Kind: First}, {Chat: "b", Kind: Fork, From: "a", Keep: 1}},
		"nothing said":     {{Chat: "a", Kind: Regenerate}},
	} {
		s := &Script{Systems: []string{"hi"}, Steps: steps}
		if _, err := runInMemory(t, s, false); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m, err := model("test")
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(ctx, Options{Script: script(), Progress: func(p Progress) {
		if p.Step == 1 {
			cancel()
		}
	}}, func(string) (*engine, error) { return &engine{m: m, plan: whole{}}, nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Through a daemon: the answers are the same, and what the daemon advises is
// used.
func TestRunThroughADaemon(t *testing.T) {
	c := settings.Default()
	dir := t.TempDir()
	c.Socket, c.AdminSocket, c.HTTP = filepath.Join(dir, "s"), filepath.Join(dir, "a"), "off"
	c.Arena, c.Private, c.Staging, c.Slots = 64*settings.MiB, 256*settings.MiB, 64*settings.MiB, 64*settings.MiB
	d, err := daemon.New(c, daemon.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-d.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not come up")
	}
	client, err := connector.Open(connector.Options{Socket: d.Socket(), Timeouts: connector.Timeouts{Lookup: 10 * time.Second, Transfer: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := script()
	if testing.Short() {
		s.Steps = s.Steps[:3]
	}
	r, err := RunClient(ctx, client, Options{Script: s})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Failed(); err != nil {
		t.Error(err)
	}
	here, err := runInMemory(t, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Way(WayEvery), here.Way(WayEvery); got.ReusedTokens != want.ReusedTokens || got.CheckpointsSaved != want.CheckpointsSaved {
		t.Errorf("every message: through the daemon %+v, in memory %+v", got, want)
	}
	if a := r.Way(WayAdvised); a.CheckpointsSaved == 0 || a.ReusedTokens == 0 || a.CheckpointBytes == 0 {
		t.Errorf("advised: %+v", a)
	}
}
