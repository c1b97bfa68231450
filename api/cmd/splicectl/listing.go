package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// mostSorted bounds the number of items read for sorting.
const mostSorted = 1 << 20

// lister implements a command that lists objects of one or several nodes.
type lister struct {
	target  target
	watcher watcher
	limit   int
	sort    string
}

func (l *lister) flags(fs *pflag.FlagSet, limit int) {
	l.target.flags(fs)
	l.target.nodeFlags(fs)
	l.watcher.flags(fs)
	fs.IntVarP(&l.limit, "limit", "n", limit, "list at most this `number` of rows; 0 = all")
	fs.StringVar(&l.sort, "sort", "", "`column` to sort by, as in --sort bytes; with a minus in descending order, as in --sort=-bytes")
}

// read returns the number of items to read; 0 = all.
func (l *lister) read() int {
	if l.sort != "" {
		return mostSorted
	}
	return l.limit
}

// pageLimit returns the number of items per request.
func (l *lister) pageLimit() int {
	if n := l.read(); n > 0 {
		return min(n, api.MaxLimit)
	}
	return api.MaxLimit
}

// nodeListing is the document of one of several nodes.
type nodeListing struct {
	Node  string `json:"node"`
	Items []any  `json:"items"`
	More  bool   `json:"more"`
	Error string `json:"error,omitempty"` // if it is set, the node has not answered and the other fields are empty
}

// run queries the nodes, and shows their answers.
func (l *lister) run(ctx context.Context, c *cli.Call, ask func(context.Context, *api.Client) (*show.Page, error)) error {
	if l.limit < 0 {
		return cli.Usagef("--limit %d is negative", l.limit)
	}
	return l.watcher.run(ctx, c, func(ctx context.Context, c *cli.Call) error { return l.once(ctx, c, ask) })
}

func (l *lister) once(ctx context.Context, c *cli.Call, ask func(context.Context, *api.Client) (*show.Page, error)) error {
	nodes, err := l.target.nodes(ctx)
	if err != nil {
		return err
	}
	answers := askAll(ctx, nodes, func(ctx context.Context, client *api.Client) (*show.Page, error) {
		page, err := ask(ctx, client)
		if err == nil {
			err = l.arrange(page)
		}
		return page, err
	})
	if !l.target.several() {
		if answers[0].err != nil {
			return answers[0].err
		}
		return c.Page(answers[0].value)
	}
	return l.showAll(c, answers)
}

func (l *lister) arrange(page *show.Page) error {
	if l.sort != "" {
		if err := page.Sort(l.sort); err != nil {
			return cli.UsageError{Text: err.Error()}
		}
	}
	page.Cut(l.limit)
	return nil
}

// showAll shows the answers of several nodes as one table. It returns an error if a node did not
// answer.
func (l *lister) showAll(c *cli.Call, answers []answer[*show.Page]) error {
	var failed error
	all := &show.Page{}
	documents := []nodeListing{}
	for _, a := range answers {
		if _, ok := errors.AsType[cli.UsageError](a.err); ok {
			return a.err
		}
		if a.err != nil {
			failed = cli.ErrFailed
			fmt.Fprintf(c.Stderr, "%s: %s\n", terminal.Line(a.node), terminal.Text(a.err.Error()))
			documents = append(documents, nodeListing{Node: a.node, Items: []any{}, Error: a.err.Error()})
			continue
		}
		documents = append(documents, nodeListing{Node: a.node, Items: a.value.Items, More: a.value.More})
		a.value.Named("NODE", a.node)
		all.Columns, all.Rows, all.Items = a.value.Columns, append(all.Rows, a.value.Rows...), append(all.Items, a.value.Items...)
		all.More = all.More || a.value.More
	}
	if c.JSON {
		return errors.Join(failed, c.Document(map[string]any{"nodes": documents}))
	}
	if len(all.Columns) == 0 {
		return failed
	}
	if err := l.arrange(all); err != nil {
		return err
	}
	return errors.Join(failed, c.Page(all))
}

// take reads at most limit items (0 = all), and reports whether there are more.
func take[T any](seq iter.Seq2[T, error], limit int) ([]T, bool, error) {
	items := []T{}
	for item, err := range seq {
		if err != nil {
			return nil, false, err
		}
		if limit > 0 && len(items) == limit {
			return items, true, nil
		}
		items = append(items, item)
	}
	return items, false, nil
}
