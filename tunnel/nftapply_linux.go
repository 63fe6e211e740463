package tunnel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// elementsPerMessage keeps the list of elements, whose length has 16 bits,
	// below its limit.
	elementsPerMessage = 512
	// netlinkBuffer holds the largest batch: a table with maxInbound elements of
	// several peers.
	netlinkBuffer = 32 << 20
)

// firewall keeps the nftables table equal to a ruleset.
type firewall struct {
	// settled is the generation of nftables at which the table last matched, digest the
	// ruleset. While neither changed nothing is read.
	settled uint32
	digest  string
	// replaced is when the table was last replaced, and by which structure: a kernel that
	// returns other rules than it was given must not cause a loop.
	replaced   time.Time
	replacedBy string
}

// replaceEvery is the least time between two replacements by the same.
const replaceEvery = time.Second

// buffers enlarges the buffers of a netlink socket, as far as we may.
func buffers[C interface {
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}](c C) error {
	return errors.Join(c.SetReadBuffer(netlinkBuffer), c.SetWriteBuffer(netlinkBuffer))
}

func table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// apply makes the table match and returns whether it changed it. In a table whose structure
// matches only elements are changed; any other is replaced in one transaction.
func (w *firewall) apply(now time.Time, want ruleset) (changed bool, err error) {
	generation, err := nftGeneration()
	if err != nil {
		return false, fmt.Errorf("read nftables generation: %w", err)
	}
	whole := want.digest + elementsDigest(want)
	if generation == w.settled && whole == w.digest {
		return false, nil
	}
	c, err := nftables.New(nftables.WithSockOptions(buffers))
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	have, err := readTable(c, want)
	if err != nil {
		return false, fmt.Errorf("read nftables table %s: %w", tableName, err)
	}
	switch {
	case !have.fits && w.replacedBy == want.digest && now.Sub(w.replaced) < replaceEvery:
		return false, nil // compared again soon
	case !have.fits:
		changed, w.replaced, w.replacedBy = true, now, want.digest
		if err := replaceTable(c, want); err != nil {
			return false, fmt.Errorf("replace nftables table %s: %w", tableName, err)
		}
	case len(have.differ) > 0:
		changed = true
		if err := changeElements(c, want, have); err != nil {
			return false, fmt.Errorf("change sets of nftables table %s: %w", tableName, err)
		}
	default:
		w.settled, w.digest = generation, whole
		return false, nil
	}
	// The new generation is confirmed by the next reading, not assumed.
	w.settled, w.digest = 0, ""
	return changed, nil
}

// tableState is what is in the kernel, as far as it matters.
type tableState struct {
	fits     bool // chains, rules and the sets that do not change
	elements map[string][]nftables.SetElement
	differ   []string // live sets with other elements
}

func readTable(c *nftables.Conn, want ruleset) (tableState, error) {
	st := tableState{elements: map[string][]nftables.SetElement{}}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return st, fmt.Errorf("list chains: %w", err)
	}
	chains = slices.DeleteFunc(chains, func(ch *nftables.Chain) bool { return ch.Table.Name != tableName })
	if len(chains) != len(want.chains) {
		return st, nil
	}
	for _, w := range want.chains {
		i := slices.IndexFunc(chains, func(ch *nftables.Chain) bool { return ch.Name == w.name })
		if i < 0 || !sameChain(chains[i], w) {
			return st, nil
		}
		rules, err := c.GetRules(table(), chains[i])
		if err != nil {
			return st, fmt.Errorf("list rules of %s: %w", w.name, err)
		}
		if !slices.EqualFunc(rules, w.rules, func(h *nftables.Rule, r chainRule) bool {
			return bytes.Equal(h.UserData, comment(r.text, want.digest))
		}) {
			return st, nil
		}
	}
	sets, err := c.GetSets(table())
	if err != nil {
		return st, fmt.Errorf("list sets: %w", err)
	}
	if len(sets) != len(want.sets) {
		return st, nil
	}
	for _, w := range want.sets {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == w.name }) {
			return st, nil
		}
		have, err := c.GetSetElements(&nftables.Set{Table: table(), Name: w.name})
		if err != nil {
			return st, fmt.Errorf("list elements of %s: %w", w.name, err)
		}
		if w.sameElements(have, w.elements) {
			continue
		}
		if !w.live {
			return st, nil
		}
		st.elements[w.name] = have
		st.differ = append(st.differ, w.name)
	}
	st.fits = true
	return st, nil
}

func sameChain(h *nftables.Chain, w ruleChain) bool {
	if w.kind == "" {
		return h.Hooknum == nil
	}
	return h.Hooknum != nil && h.Priority != nil && *h.Hooknum == *w.hook && *h.Priority == w.priority && h.Type == w.kind &&
		h.Policy != nil && *h.Policy == nftables.ChainPolicyAccept
}

// comment is the user data of a rule: what it is for, and the digest of the
// whole structure, so that one changed or missing rule is seen.
func comment(text, digest string) []byte {
	const most = 128
	text = strings.ToValidUTF8(text[:min(len(text), most)], "")
	return userdata.AppendString(nil, userdata.TypeComment, text+" #"+digest)
}

// elementsDigest is a digest of the elements of live sets.
func elementsDigest(r ruleset) string {
	h := sha256.New()
	for _, s := range r.sets {
		if s.live {
			fmt.Fprintln(h, s.name)
			for _, e := range s.elements {
				fmt.Fprintf(h, "%q\n", s.identity(e))
			}
		}
	}
	return string(h.Sum(nil))
}

// identity is an element as far as it matters: one that leads to another chain is
// another one.
func (s ruleSet) identity(e nftables.SetElement) string {
	id := string(e.Key)
	switch {
	case e.IntervalEnd:
		id += "end"
	case !s.verdicts:
	case e.VerdictData != nil:
		id += e.VerdictData.Chain
	default:
		id += verdictChain(e.Val)
	}
	return id
}

// verdictChain is the chain of a verdict, which the kernel gives as netlink attributes.
func verdictChain(b []byte) string {
	attributes, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return ""
	}
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_VERDICT_CHAIN {
			return attributes.String()
		}
	}
	return ""
}

func (s ruleSet) sameElements(a, b []nftables.SetElement) bool {
	return len(a) == len(b) && len(s.minus(a, b)) == 0
}

// minus is a without the elements of b.
func (s ruleSet) minus(a, b []nftables.SetElement) []nftables.SetElement {
	in := make(map[string]bool, len(b))
	for _, e := range b {
		in[s.identity(e)] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(e nftables.SetElement) bool { return in[s.identity(e)] })
}

// replaceTable does all in one transaction.
func replaceTable(c *nftables.Conn, want ruleset) error {
	t := table()
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
	chains := make([]*nftables.Chain, len(want.chains))
	for i, w := range want.chains {
		chains[i] = &nftables.Chain{Table: t, Name: w.name}
		if w.kind != "" {
			policy := nftables.ChainPolicyAccept
			chains[i].Type, chains[i].Hooknum, chains[i].Priority, chains[i].Policy = w.kind, w.hook, new(w.priority), &policy
		}
		c.AddChain(chains[i])
	}
	for _, w := range want.sets {
		s := w.set(t)
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", w.name, err)
		}
		if err := inChunks(w.elements, func(es []nftables.SetElement) error { return c.SetAddElements(s, es) }); err != nil {
			return fmt.Errorf("elements of set %s: %w", w.name, err)
		}
	}
	for i, w := range want.chains {
		for _, r := range w.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: chains[i], Exprs: r.exprs, UserData: comment(r.text, want.digest)})
		}
	}
	return c.Flush()
}

func (s ruleSet) set(t *nftables.Table) *nftables.Set {
	set := &nftables.Set{Table: t, Name: s.name, KeyType: s.key, Interval: s.interval, Concatenation: strings.Contains(s.key.Name, ".")}
	if s.verdicts {
		set.IsMap, set.DataType = true, nftables.TypeVerdict
	}
	return set
}

// changeElements does all in one transaction. It removes before it adds, for an
// element of a map that leads elsewhere is the same one to the kernel.
func changeElements(c *nftables.Conn, want ruleset, have tableState) error {
	for _, w := range want.sets {
		if !slices.Contains(have.differ, w.name) {
			continue
		}
		s := w.set(table())
		add, del := w.minus(w.elements, have.elements[w.name]), w.minus(have.elements[w.name], w.elements)
		err := errors.Join(
			inChunks(del, func(es []nftables.SetElement) error { return c.SetDeleteElements(s, keysOf(es)) }),
			inChunks(add, func(es []nftables.SetElement) error { return c.SetAddElements(s, es) }))
		if err != nil {
			return fmt.Errorf("set %s: %w", w.name, err)
		}
	}
	return c.Flush()
}

// keysOf are elements without what they map to.
func keysOf(es []nftables.SetElement) []nftables.SetElement {
	keys := make([]nftables.SetElement, 0, len(es))
	for _, e := range es {
		keys = append(keys, nftables.SetElement{Key: e.Key, IntervalEnd: e.IntervalEnd})
	}
	return keys
}

func inChunks(es []nftables.SetElement, do func([]nftables.SetElement) error) error {
	for chunk := range slices.Chunk(es, elementsPerMessage) {
		if err := do(chunk); err != nil {
			return err
		}
	}
	return nil
}

// removeTable deletes the table if there is one.
func removeTable() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.AddTable(table())
	c.DelTable(table())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", tableName, err)
	}
	return nil
}
