package ragdemo

import (
	"fmt"
	"strings"
	"time"
)

// Answered is one question of a trained model with its results.
type Answered struct {
	Question string `json:"question"`
	Kind     string `json:"kind"`
	Want     string `json:"want"`
	Cold     bool   `json:"cold"` // a segment was not cached when it came
	Ways     []Said `json:"ways"` // in the order of the report's ways
}

// Said is the answer of one way, and the time to its first token.
type Said struct {
	Answer string  `json:"answer"`
	Right  bool    `json:"right"`
	TTFT   float64 `json:"ttft_ms"`
}

// answers adds a trained model's answers to the report.
func (r *runner) answers(out *Report) {
	t := r.load.trained
	if t == nil {
		return
	}
	for i := range r.opt.Requests {
		q := &t.Questions[i]
		a := Answered{Question: t.question(q), Kind: q.Kind, Want: t.Text(q.Answer), Cold: r.cold[i]}
		for _, way := range ways {
			o := r.done[way][i]
			a.Ways = append(a.Ways, Said{Answer: o.answer, Right: o.right, TTFT: float64(o.ttft) / float64(time.Millisecond)})
		}
		out.Answers = append(out.Answers, a)
	}
	var text []string
	for _, segment := range t.Questions[0].Segments {
		text = append(text, t.Text(segment))
	}
	out.Example = strings.Join(text, "\n")
}

// columns is the largest width of a report.
const columns = 110

// printAnswers writes the first prompt in full, and one line for each question.
func (r *Report) printAnswers(b *strings.Builder) {
	if len(r.Answers) == 0 {
		return
	}
	b.WriteString("\nthe first prompt; each line is a segment that is reused by itself:\n")
	for _, segment := range strings.Split(r.Example, "\n") {
		wrap(b, segment)
	}
	fmt.Fprintf(b, "\nanswers when spliced, and TTFT in ms%58s%8s%8s\n", "full", "prefix", "spliced")
	for i := range r.Answers {
		a := &r.Answers[i]
		full, prefix, spliced := a.Ways[0], a.Ways[1], a.Ways[2]
		verdict := "right"
		if !spliced.Right {
			verdict = "wrong"
		}
		state := "warm"
		if a.Cold {
			state = "cold"
		}
		fmt.Fprintf(b, "%3d %s %-52.52s %-18.18s %s%7.1f%8.1f%8.1f\n", i+1, state, a.Question, spliced.Answer, verdict,
			full.TTFT, prefix.TTFT, spliced.TTFT)
		if !spliced.Right {
			fmt.Fprintf(b, "%9swanted %s; full recompute says %s\n", "", a.Want, full.Answer)
		}
	}
}

// wrap writes words in lines of at most columns, the second and later ones indented.
func wrap(b *strings.Builder, text string) {
	line := 0
	for i, word := range strings.Fields(text) {
		if i > 0 && line+1+len(word) > columns {
			b.WriteString("\n   ")
			line = 3
		}
		b.WriteByte(' ')
		b.WriteString(word)
		line += 1 + len(word)
	}
	b.WriteByte('\n')
}
