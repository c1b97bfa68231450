package chatdemo

import "fmt"

// Kind is the origin of a prompt.
type Kind string

// The kinds of a step.
const (
	First      Kind = "first turn"     // a system prompt and a question
	Next       Kind = "next turn"      // the conversation so far and a question
	Tool       Kind = "tool result"    // the conversation so far and a tool's answer
	Fork       Kind = "fork"           // an earlier part of a conversation and another question
	Regenerate Kind = "another answer" // the last prompt again, with a different answer
)

// kinds lists the kinds in the order of reports.
var kinds = []Kind{First, Next, Tool, Fork, Regenerate}

// Step is one prompt of a script.
type Step struct {
	Chat   string
	Kind   Kind
	System int    // First: which system prompt
	From   string // Fork: the conversation to continue
	Keep   int    // Fork: number of its messages to keep, questions and answers
	Text   string // message of the user or the tool
}

// Script is a list of conversations, interleaved in order of arrival.
type Script struct {
	Systems []string
	Steps   []Step
}

// message is a span of a conversation.
type message struct {
	tokens []uint32
	answer bool
}

// chat is a conversation so far: its last message is an answer, except after the system
// prompt.
type chat struct {
	system   []uint32
	messages []message
	variants int // answers to the last question
}

func tokens(s string) []uint32 {
	out := make([]uint32, len(s))
	for i := range len(s) {
		out[i] = uint32(s[i])
	}
	return out
}

// asked returns a message of the user or a tool, up to the start of the model's answer.
func asked(who, text string) message {
	return message{tokens: tokens("\n<" + who + ">\n" + text + "\n<assistant>\n")}
}

// prompt returns all tokens of the conversation, and the positions at which messages begin,
// ascending.
func (c *chat) prompt() (all []uint32, cuts []int) {
	all = append(all, c.system...)
	for _, m := range c.messages {
		cuts = append(cuts, len(all))
		all = append(all, m.tokens...)
	}
	return all, cuts
}

// apply adds a step's message to the step's conversation and returns the conversation.
func (s *Script) apply(chats map[string]*chat, step Step) (*chat, error) {
	c := chats[step.Chat]
	switch step.Kind {
	case First:
		if c != nil || step.System < 0 || step.System >= len(s.Systems) {
			return nil, fmt.Errorf("chatdemo: %q begins twice, or with system prompt %d of %d", step.Chat, step.System, len(s.Systems))
		}
		c = &chat{system: tokens(s.Systems[step.System])}
	case Fork:
		from := chats[step.From]
		if c != nil || from == nil || step.Keep < 1 || step.Keep > len(from.messages) || !from.messages[step.Keep-1].answer {
			return nil, fmt.Errorf("chatdemo: %q cannot leave %q after %d messages", step.Chat, step.From, step.Keep)
		}
		c = &chat{system: from.system, messages: append([]message(nil), from.messages[:step.Keep]...)}
	default:
		if c == nil || len(c.messages) == 0 {
			return nil, fmt.Errorf("chatdemo: %q goes on before it began", step.Chat)
		}
	}
	chats[step.Chat] = c
	if step.Kind == Regenerate {
		c.messages = c.messages[:len(c.messages)-1]
		c.variants++
		return c, nil
	}
	who := "user"
	if step.Kind == Tool {
		who = "tool"
	}
	c.messages = append(c.messages, asked(who, step.Text))
	c.variants = 0
	return c, nil
}
