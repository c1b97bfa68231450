package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// sets is the least index there can be: each node's list of names, of which a question
// says how many are known.
type sets struct {
	mu      sync.Mutex
	own     []string
	known   map[uint16][]string
	bad     bool // answers make no sense
	inLearn map[uint16]bool
	at      time.Duration
}

func newSets() *sets {
	return &sets{known: map[uint16][]string{}, inLearn: map[uint16]bool{}, at: 5 * time.Millisecond}
}

func (s *sets) Interval(int) time.Duration { return s.at }

func (s *sets) Ask(n uint16) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return binary.LittleEndian.AppendUint32(nil, uint32(len(s.known[n])))
}

func (s *sets) Answer(dst, question []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(question) != 4 {
		return nil, errors.New("not a question")
	}
	from := binary.LittleEndian.Uint32(question)
	if int(from) > len(s.own) {
		return nil, errors.New("from the future")
	}
	if s.bad {
		return append(dst, "nonsense"...), nil
	}
	list := s.own[from:]
	more := byte(0)
	if len(list) > 2 {
		list, more = list[:2], 1
	}
	return append(append(dst, more), strings.Join(list, " ")...), nil
}

func (s *sets) Learn(n uint16, answer []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(answer) == 0 || answer[0] > 1 {
		return false, errors.New("nonsense")
	}
	s.known[n] = append(s.known[n], strings.Fields(string(answer[1:]))...)
	return answer[0] == 1, nil
}

func (s *sets) add(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = append(s.own, names...)
}

// of is what is known of a member.
func (s *sets) of(n uint16) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.known[n], " ")
}

func (s *sets) forget(n uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, n)
}

// startWith runs a node that has an index.
func (b *bed) startWith(name string, s *sets, seeds []string, change func(*Config)) *node {
	return b.start(name, seeds, func(c *Config) {
		c.Exchange = s
		leave := c.OnLeave
		c.OnLeave = func(m Member) { s.forget(m.Number); leave(m) }
		if change != nil {
			change(c)
		}
	})
}

// learnt is what a node knows of another one's set.
func (n *node) learnt(s *sets, name string) string {
	m, ok := n.member(name)
	if !ok || !m.Told {
		return "no member"
	}
	return s.of(m.Number)
}

func TestMembersLearnWhatOthersHold(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"TLS":   nil,
		"plain": func(c *Config) { c.Keyring, c.Insecure = "", true },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			of := map[string]*sets{"a": newSets(), "c": newSets(), "d": newSets()}
			of["a"].add("1", "2", "3", "4", "5")
			a := b.startWith("a", of["a"], []string{"127.0.0.1:1"}, change)
			nodes := map[string]*node{"a": a, "c": b.startWith("c", of["c"], []string{a.address()}, change), "d": b.startWith("d", of["d"], []string{a.address()}, change)}
			eventually(t, "a set of several pieces is learnt", func() bool {
				return nodes["c"].learnt(of["c"], "a") == "1 2 3 4 5" && nodes["d"].learnt(of["d"], "a") == "1 2 3 4 5"
			})
			begun := time.Now()
			of["c"].add("6")
			eventually(t, "what is new is learnt", func() bool { return a.learnt(of["a"], "c") == "6" && nodes["d"].learnt(of["d"], "c") == "6" })
			t.Logf("visible on both others in %v", time.Since(begun))
			if s := a.Status(); s.Exchange.Answered == 0 || s.Exchange.Asked == 0 || s.Exchange.Told == 0 || s.Exchange.Learnt == 0 || s.Exchange.Refused != 0 ||
				s.Connections != 2 || s.Certificate.IsZero() != (name == "plain") || s.Encrypted != (name == "TLS") {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestAMemberThatRestartsIsLearntAnew(t *testing.T) {
	b := newBed(t)
	ofA, ofD := newSets(), newSets()
	ofD.add("1", "2", "3")
	a := b.startWith("a", ofA, []string{"127.0.0.1:1"}, nil)
	d := b.startWith("d", ofD, []string{a.address()}, nil)
	eventually(t, "all is learnt", func() bool { return a.learnt(ofA, "d") == "1 2 3" })
	d.kill()
	ofD = newSets()
	ofD.add("9")
	again := b.startWith("d", ofD, []string{a.address()}, nil) // with another port
	eventually(t, "the new set has taken the place of the old one", func() bool { return a.learnt(ofA, "d") == "9" })
	if m, _ := a.member("d"); m.Incarnation != again.Incarnation() || a.told() != "+d -d +d" {
		t.Errorf("a works with start %d, want %d; it was told %q", m.Incarnation, again.Incarnation(), a.told())
	}
	eventually(t, "the new one works with a", func() bool { return again.knows("a") })
}

func TestAMemberThatAnswersNonsenseIsAskedLessOften(t *testing.T) {
	b := newBed(t)
	ofA, ofD := newSets(), newSets()
	ofD.bad = true
	a := b.startWith("a", ofA, []string{"127.0.0.1:1"}, nil)
	b.startWith("d", ofD, []string{a.address()}, nil)
	eventually(t, "it has answered", func() bool { return a.Status().Exchange.Failed >= 4 })
	begun, before := time.Now(), a.Status().Exchange.Asked
	eventually(t, "it is asked again", func() bool { return a.Status().Exchange.Asked >= before+3 })
	if d := time.Since(begun); d < 10*ofA.at {
		t.Errorf("three questions in %v, of one in %v", d, ofA.at)
	}
	ofD.mu.Lock()
	ofD.bad = false
	ofD.mu.Unlock()
	ofD.add("1")
	eventually(t, "a good answer is taken", func() bool { return a.learnt(ofA, "d") == "1" })
}

func TestWhatIsToldIsBounded(t *testing.T) {
	now := newExchanger(newSets(), "c", 1, nil, 1000)
	ask := func() int {
		var ctx fasthttp.RequestCtx
		ctx.Request.Header.SetMethod("POST")
		ctx.Request.Header.Set(clusterHeader, "c")
		ctx.Request.Header.Set(startHeader, "1")
		ctx.Request.SetBody([]byte{0, 0, 0, 0})
		now.answer(&ctx)
		return ctx.Response.StatusCode()
	}
	long := strings.Repeat("x", MaxAnswer-1)
	now.of.(*sets).add(long)
	// The first takes what was saved, the second goes into debt.
	if got := []int{ask(), ask(), ask()}; fmt.Sprint(got) != "[200 200 429]" {
		t.Errorf("statuses %v", got)
	}
	now.of.(*sets).add("beyond")
	now = newExchanger(now.of, "c", 1, nil, DefaultExchangeRate)
	if got := ask(); got != 400 {
		t.Errorf("an answer that is too large: status %d", got)
	}
}

func TestQuestionsThatAreRefused(t *testing.T) {
	const cutOff = 0
	b := newBed(t)
	s := newSets()
	a := b.startWith("a", s, []string{"127.0.0.1:1"}, func(c *Config) {
		c.Keyring, c.Insecure = "", true
		c.Handler = func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString("the handler's " + string(ctx.Path())) }
	})
	good := map[string]string{clusterHeader: "test", startHeader: a.exchange.incarnation}
	for name, row := range map[string]struct {
		path   string
		change map[string]string
		body   string
		status int
		want   string
	}{
		"good":                {exchangePath, nil, "\x00\x00\x00\x00", 200, ""},
		"another cluster":     {exchangePath, map[string]string{clusterHeader: "other"}, "\x00\x00\x00\x00", 421, "stale"},
		"an earlier start":    {exchangePath, map[string]string{startHeader: "1"}, "\x00\x00\x00\x00", 421, "stale"},
		"no question":         {exchangePath, nil, "", 400, "invalid"},
		"from the future":     {exchangePath, nil, "\xff\xff\xff\xff", 400, "from the future"},
		"a long question":     {exchangePath, nil, strings.Repeat("x", MaxQuestion+1), 400, "invalid"},
		"another path":        {"/peer/v1/find", nil, "", 200, "the handler's /peer/v1/find"},
		"more than a request": {exchangePath, nil, strings.Repeat("x", maxBodyBytes+1), cutOff, ""},
	} {
		conn, err := net.Dial("tcp", a.Members()[0].Peer.String())
		must(t, err)
		var request fasthttp.Request
		var response fasthttp.Response
		request.Header.SetMethod("POST")
		request.SetRequestURI("http://a" + row.path)
		headers := maps.Clone(good)
		maps.Copy(headers, row.change)
		for k, v := range headers {
			request.Header.Set(k, v)
		}
		request.SetBodyString(row.body)
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		out := bufio.NewWriter(conn)
		if err = request.Write(out); err == nil {
			err = out.Flush()
		}
		if err == nil {
			err = response.ReadLimitBody(bufio.NewReader(conn), 1<<20)
		}
		switch {
		case row.status == cutOff: // the server closes while we write, so there may be no answer to read
			if err == nil && response.StatusCode() == fasthttp.StatusOK {
				t.Errorf("%s: it was answered", name)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case response.StatusCode() != row.status || !strings.Contains(string(response.Body()), row.want):
			t.Errorf("%s: %d %s", name, response.StatusCode(), response.Body())
		}
		conn.Close()
	}
}

// endless has always more to tell.
type endless struct{ *sets }

func (e endless) Learn(n uint16, answer []byte) (bool, error) {
	_, err := e.sets.Learn(n, answer)
	return true, err
}

func TestAMemberThatHasAlwaysMoreToTellIsAskedAtABoundedRate(t *testing.T) {
	b := newBed(t)
	told, asks := newSets(), newSets()
	told.at, asks.at = time.Second, time.Second
	a := b.startWith("a", told, []string{"127.0.0.1:1"}, nil)
	c := b.start("c", []string{a.address()}, func(c *Config) { c.Exchange = endless{asks} })
	asked := func() uint64 { return c.Status().Exchange.Asked }
	eventually(t, "it is asked for more", func() bool { return asked() > 10 })
	begun, before := time.Now(), asked()
	eventually(t, "and for more", func() bool { return asked() >= before+50 })
	if least := 50 * morePause / 2; time.Since(begun) < least {
		t.Errorf("50 questions took %v, want %v at least", time.Since(begun), least)
	}
}
