package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// sessions reads lines of the form "seconds,session,turn,input tokens,output tokens": the order
// in which turns of recorded sessions arrive. Another file has the texts of the sessions. The
// counts in each line must agree with the texts.
type sessions struct {
	texts *trajectories
	last  float64
}

func (s *sessions) decode(line []byte, r *Request) error {
	fields := bytes.Split(line, []byte{','})
	if len(fields) != 5 {
		return fmt.Errorf("%d fields, want time, session, turn, input and output tokens", len(fields))
	}
	at, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		return fmt.Errorf("%.40q is no time", fields[0])
	}
	if r.Time, err = seconds(at, 1); err != nil {
		return err
	}
	if at < s.last {
		return fmt.Errorf("time %g after %g", at, s.last)
	}
	s.last = at
	var n [4]int
	for i, f := range fields[1:] {
		if n[i], err = integer(f, 0, maxTokens); err != nil {
			return fmt.Errorf("field %d: %w", i+2, err)
		}
	}
	if s.texts == nil {
		return errNoTexts
	}
	t, err := s.texts.session(n[0])
	if err != nil {
		return err
	}
	if n[1] >= len(t.answers) {
		return &Error{Mismatch, s.texts.in.file, 0, fmt.Errorf("session %d has %d turns, the order names turn %d", n[0], len(t.answers), n[1])}
	}
	r.Input = t.prompt(r.Input, n[1], n[2])
	r.Output = append(r.Output, t.answers[n[1]]...)
	if len(r.Input) != n[2] || len(r.Output) != n[3] {
		return &Error{Mismatch, s.texts.in.file, 0, fmt.Errorf("turn %d of session %d has %d and %d tokens, the order says %d and %d",
			n[1], n[0], len(r.Input), len(r.Output), n[2], n[3])}
	}
	r.Session = strconv.Itoa(n[0])
	r.InputTokens, r.OutputTokens = n[2], n[3]
	return nil
}

// trajectory is a session as tokens. answers[i] is the model's answer of turn i, and asks[i] is
// everything between answers[i-1] and answers[i].
type trajectory struct {
	asks, answers [][]uint32
}

// keptAsks concerns prompts from which older observations are omitted. Such a prompt has the
// first ask and the keptAsks most recent asks (see trajectory). This is the rule of SWE-agent,
// as Marconi's generator applies it.
const keptAsks = 6

// prompt appends the input of a turn. want is the number of tokens that the input must have. If
// the whole session so far has another length, old observations are omitted.
func (t *trajectory) prompt(out []uint32, turn, want int) []uint32 {
	whole := t.length(turn, 0)
	dropped := 0
	if whole != want {
		dropped = max(turn-keptAsks, 0)
	}
	for i := range turn {
		if i == 0 || i > dropped {
			out = append(out, t.asks[i]...)
		}
		out = append(out, t.answers[i]...)
	}
	return append(out, t.asks[turn]...)
}

// length returns the number of tokens of the input of a turn, without the asks with the numbers
// 1 to dropped.
func (t *trajectory) length(turn, dropped int) int {
	n := len(t.asks[turn])
	for i := range turn {
		if n += len(t.answers[i]); i == 0 || i > dropped {
			n += len(t.asks[i])
		}
	}
	return n
}

// trajectories reads sessions as they are needed, and keeps them in memory, because turns of
// different sessions are interleaved.
type trajectories struct {
	in   *lines
	read []*trajectory
}

// mostSessions bounds the kept sessions.
const mostSessions = 100_000

func (s *trajectories) session(i int) (*trajectory, error) {
	for i >= len(s.read) {
		line, err := s.in.next()
		if errors.Is(err, io.EOF) {
			return nil, &Error{Mismatch, s.in.file, 0, fmt.Errorf("holds %d sessions, the order names session %d", len(s.read), i)}
		}
		if err != nil {
			return nil, err
		}
		t, err := decodeTrajectory(line)
		if err == nil && len(s.read) >= mostSessions {
			err = fmt.Errorf("more than %d sessions", mostSessions)
		}
		if err != nil {
			return nil, s.in.bad(err)
		}
		s.read = append(s.read, t)
	}
	return s.read[i], nil
}

// decodeTrajectory reads {"msgs": [[role, text], …]}. Roles are s (system), u (user) and a
// (assistant). The tokens of a message include a line with its role.
func decodeTrajectory(line []byte) (*trajectory, error) {
	var l struct {
		Msgs [][]string `json:"msgs"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, err
	}
	if l.Msgs == nil {
		return nil, errors.New("no msgs")
	}
	t := &trajectory{}
	var ask []uint32
	for i, m := range l.Msgs {
		if len(m) != 2 || m[0] != "s" && m[0] != "u" && m[0] != "a" {
			return nil, fmt.Errorf("message %d is not [role, text] with role s, u or a", i+1)
		}
		tokens := chunk4(nil, []byte("<|"+m[0]+"|>\n"+m[1]))
		if m[0] != "a" {
			ask = append(ask, tokens...)
			continue
		}
		t.asks, t.answers = append(t.asks, ask), append(t.answers, tokens)
		ask = nil
	}
	return t, nil
}
