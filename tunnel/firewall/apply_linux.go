package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

const (
	// elementsPerMessage keeps the list of elements, whose length has 16 bits,
	// below its limit.
	elementsPerMessage = 512
	// netlinkBuffer has room for the largest batch: a table with maxInbound elements of
	// several peers.
	netlinkBuffer = 32 << 20
)

// Table makes the nftables table of a node match its layout. The zero value has not read the
// table yet.
type Table struct {
	// matched is the generation of nftables at which the table last matched, digest that of the
	// ruleset, and of the layout that the ruleset follows from. While none of them changes nothing is read.
	matched uint32
	digest  string
	of      *plan.Layout
	// written is when chains or sets were last written, and by which ruleset: a kernel that
	// returns other rules than were written must not cause a loop.
	written   time.Time
	writtenBy string
	// presence is what was last known, read is when that was. At first it is when reading was first tried.
	presence Presence
	read     time.Time
	// counted are the sets for the prefixes in countedOf, which the last layout counts.
	counted   []ruleSet
	countedOf []netip.Prefix
}

const (
	// writeEvery is the least time in which the same chains and sets are written again, unless there is no
	// table.
	writeEvery = time.Second
	// unreadMost is for how long a table counts as it was last read while it cannot be read. After that
	// it counts as absent.
	unreadMost = 10 * time.Second
)

// Presence is whether the kernel has a table that drops what it does not open to peers. That is the desired
// one, or an older one.
type Presence int

// The states of the table.
const (
	// Unknown: it could not be read yet.
	Unknown Presence = iota
	Present
	Absent
)

// Presence returns what Apply last learnt.
func (w *Table) Presence(now time.Time) Presence {
	if now.Sub(w.read) > unreadMost {
		return Absent
	}
	return w.presence
}

// learn notes the state of the table.
func (w *Table) learn(now time.Time, drops bool) {
	w.read, w.presence = now, Absent
	if drops {
		w.presence = Present
	}
}

// buffers enlarges the buffers of a netlink socket, as far as it is allowed.
func buffers[C interface {
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}](c C) error {
	return errors.Join(c.SetReadBuffer(netlinkBuffer), c.SetWriteBuffer(netlinkBuffer))
}

func table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

// Apply makes the table match a layout and reports whether it changed it. The layout must not change
// afterwards, and device and ports must always be the same. Apply changes only what differs, in one
// transaction, so that the counters and elements of other peers stay. If that is not possible, as with
// a table of another version, the table is replaced.
func (w *Table) Apply(now time.Time, l *plan.Layout, device string, ports Ports) (changed bool, err error) {
	if w.read.IsZero() {
		w.read = now
	}
	generation, err := nftGeneration()
	if err != nil {
		return false, fmt.Errorf("read nftables generation: %w", err)
	}
	if generation == w.matched {
		w.learn(now, true)
	}
	if generation == w.matched && l == w.of {
		return false, nil
	}
	if !slices.Equal(l.Counted, w.countedOf) {
		w.counted, w.countedOf = countedSets(l.Counted), l.Counted
	}
	want := rules(*l, w.counted, device, ports)
	if generation == w.matched && want.digest == w.digest {
		w.of = l
		return false, nil
	}
	c, chains, err := open()
	if err != nil {
		return false, err
	}
	w.learn(now, dropsTheRest(chains, want))
	have, err := readTable(c, chains)
	if err != nil {
		return false, fmt.Errorf("read nftables table %s: %w", TableName, err)
	}
	d := compareTable(have, want)
	switch {
	case d.none():
		w.matched, w.digest, w.of = generation, want.digest, l
		return false, nil
	case d.structure() && w.presence == Present && w.writtenBy == want.digest && now.Sub(w.written) < writeEvery:
		return false, nil // compared again soon
	case d.structure():
		w.written, w.writtenBy = now, want.digest
	}
	// The next reading confirms the new generation.
	w.matched, w.digest, w.of = 0, "", nil
	if d.replace || changeTable(d) != nil {
		if err := replaceTable(want); err != nil {
			return false, fmt.Errorf("replace nftables table %s: %w", TableName, err)
		}
	}
	w.learn(now, true)
	return true, nil
}

// Close writes a table that opens nothing, unless there is one that drops what it does not open: for a
// node whose layout is not known yet. It reports whether it wrote it.
func (w *Table) Close(now time.Time, device string, ports Ports) (changed bool, err error) {
	if w.read.IsZero() {
		w.read = now
	}
	generation, err := nftGeneration()
	if err != nil {
		return false, fmt.Errorf("read nftables generation: %w", err)
	}
	if generation == w.matched {
		w.learn(now, true)
		return false, nil
	}
	_, chains, err := open()
	if err != nil {
		return false, err
	}
	nothing := plan.Layout{Overlay: netip.IPv6Unspecified()} // no packet is sent there
	if !dropsTheRest(chains, rules(nothing, nil, device, ports)) {
		return w.Apply(now, &nothing, device, ports)
	}
	w.learn(now, true)
	w.matched, w.digest, w.of = generation, "", nil
	return false, nil
}

// tableState is the part of the table in the kernel that is compared.
type tableState struct {
	chains map[string]chainState
	sets   map[string][]nftables.SetElement
}

type chainState struct {
	chain *nftables.Chain
	rules [][]byte // their comments
}

// open returns a connection to the kernel, and the chains of the table.
func open() (*nftables.Conn, map[string]chainState, error) {
	c, err := nftables.New(nftables.WithSockOptions(buffers))
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := readChains(c)
	if err != nil {
		return nil, nil, fmt.Errorf("read nftables table %s: %w", TableName, err)
	}
	return c, chains, nil
}

func readChains(c *nftables.Conn) (map[string]chainState, error) {
	out := map[string]chainState{}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != TableName {
			continue
		}
		rules, err := c.GetRules(table(), chain)
		if err != nil {
			return nil, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		has := chainState{chain: chain}
		for _, r := range rules {
			has.rules = append(has.rules, r.UserData)
		}
		out[chain.Name] = has
	}
	return out, nil
}

// readTable adds the sets to the chains of a table.
func readTable(c *nftables.Conn, chains map[string]chainState) (tableState, error) {
	st := tableState{chains: chains, sets: map[string][]nftables.SetElement{}}
	if len(st.chains) == 0 {
		return st, nil // without a table the request for its sets would fail
	}
	sets, err := c.GetSets(table())
	if err != nil {
		return st, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		if st.sets[s.Name], err = c.GetSetElements(&nftables.Set{Table: table(), Name: s.Name}); err != nil {
			return st, fmt.Errorf("list elements of %s: %w", s.Name, err)
		}
	}
	return st, nil
}

// tableChange are the changes that make a table match.
type tableChange struct {
	// replace says that a chain has another hook than the desired one, which cannot be changed.
	replace bool
	// write are the chains that are new, or have other rules; drop those to delete.
	write, drop []ruleChain
	// added and removed are sets; elements change in those that stay.
	added, removed []ruleSet
	elements       []elementChange
}

type elementChange struct {
	set         ruleSet
	add, remove []nftables.SetElement
}

// structure reports whether more than elements changes.
func (d tableChange) structure() bool {
	return d.replace || len(d.write)+len(d.drop)+len(d.added)+len(d.removed) > 0
}

func (d tableChange) none() bool { return !d.structure() && len(d.elements) == 0 }

// compareTable returns what has to change: a pure function.
func compareTable(have tableState, want ruleset) tableChange {
	var d tableChange
	chains, sets := map[string]bool{}, map[string]bool{}
	for _, w := range want.chains {
		chains[w.name] = true
		h, exists := have.chains[w.name]
		d.replace = d.replace || exists && !sameChain(h.chain, w)
		if !exists || !slices.EqualFunc(h.rules, w.comments(), bytes.Equal) {
			d.write = append(d.write, w)
		}
	}
	for name := range have.chains {
		if !chains[name] {
			d.drop = append(d.drop, ruleChain{name: name})
		}
	}
	for _, w := range want.sets {
		sets[w.name] = true
		has, exists := have.sets[w.name]
		if !exists {
			d.added = append(d.added, w)
			continue
		}
		if add, remove := w.minus(w.elements, has), w.minus(has, w.elements); len(add)+len(remove) > 0 {
			d.elements = append(d.elements, elementChange{set: w, add: add, remove: remove})
		}
	}
	for name := range have.sets {
		if !sets[name] {
			d.removed = append(d.removed, ruleSet{name: name})
		}
	}
	return d
}

// dropsTheRest reports whether a table drops the packets from and to peers that it does not open: the
// chains where they pass are there, and end as in the desired one. What an older table opens may differ.
func dropsTheRest(have map[string]chainState, want ruleset) bool {
	for _, w := range want.chains {
		if !slices.Contains([]string{"forward", "from-tunnel", "to-tunnel", "input"}, w.name) {
			continue
		}
		h, exists := have[w.name]
		if !exists || !sameChain(h.chain, w) || len(h.rules) == 0 || purpose(h.rules[len(h.rules)-1]) != w.rules[len(w.rules)-1].text {
			return false
		}
	}
	return true
}

// purpose returns the text of a rule by its user data, without the digest of its chain.
func purpose(data []byte) string {
	comment, _ := userdata.GetString(data, userdata.TypeComment)
	text, _, _ := strings.Cut(comment, " #")
	return text
}

func sameChain(h *nftables.Chain, w ruleChain) bool {
	if w.kind == "" {
		return h.Hooknum == nil
	}
	return h.Hooknum != nil && h.Priority != nil && *h.Hooknum == *w.hook && *h.Priority == w.priority && h.Type == w.kind &&
		h.Policy != nil && *h.Policy == nftables.ChainPolicyAccept
}

// comments returns the user data of a chain's rules: the purpose of each, and the digest of the
// chain, so that a changed or missing rule is noticed.
func (c ruleChain) comments() [][]byte {
	const most = 128
	digest := c.sum()
	var out [][]byte
	for _, r := range c.rules {
		text := strings.ToValidUTF8(r.text[:min(len(r.text), most)], "")
		out = append(out, userdata.AppendString(nil, userdata.TypeComment, text+" #"+digest))
	}
	return out
}

// identity returns the part of elements that is compared: key, end and the chain or address in a map.
func (s ruleSet) identity(es ...nftables.SetElement) string {
	var id strings.Builder
	for _, e := range es {
		id.Write(e.Key)
		switch {
		case e.IntervalEnd:
			id.WriteString("end")
		case s.data:
			id.Write(e.Val)
		case !s.verdicts:
		case e.VerdictData != nil:
			id.WriteString(e.VerdictData.Chain)
		default:
			id.WriteString(verdictChain(e.Val))
		}
	}
	return id.String()
}

// verdictChain returns the chain of a verdict, which the kernel encodes as netlink attributes.
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

// minus returns the elements of a that are not in b.
func (s ruleSet) minus(a, b []nftables.SetElement) []nftables.SetElement {
	in := make(map[string]bool, len(b))
	for _, part := range s.parts(b) {
		in[s.identity(part...)] = true
	}
	return slices.Concat(slices.DeleteFunc(s.parts(a), func(part []nftables.SetElement) bool { return in[s.identity(part...)] })...)
}

// parts returns the units that the kernel can add and remove: an element, or both ends of an
// interval.
func (s ruleSet) parts(es []nftables.SetElement) [][]nftables.SetElement {
	if !s.interval {
		return slices.Collect(slices.Chunk(es, 1))
	}
	sorted := slices.SortedFunc(slices.Values(es), func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd { // of the interval before
			return -1
		}
		return 1
	})
	var out [][]nftables.SetElement
	for _, e := range sorted {
		if n := len(out); e.IntervalEnd && n > 0 && len(out[n-1]) == 1 && !out[n-1][0].IntervalEnd {
			out[n-1] = append(out[n-1], e)
			continue
		}
		out = append(out, []nftables.SetElement{e})
	}
	return out
}

// replaceTable deletes the table and makes it, in one transaction.
func replaceTable(want ruleset) error {
	return changeTable(tableChange{replace: true, write: want.chains, added: want.sets})
}

// changeTable makes all changes in one transaction. Each step comes after those that remove references to
// what it deletes, and after those that create what it refers to. Elements are removed before others
// are added, since for the kernel an element of a map is the same one if only its chain differs.
func changeTable(d tableChange) error {
	c, err := nftables.New(nftables.WithSockOptions(buffers))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := table()
	c.AddTable(t)
	if d.replace {
		c.DelTable(t)
		c.AddTable(t)
	}
	for _, w := range d.write {
		c.AddChain(w.chain(t))
	}
	for _, w := range d.added {
		if err := c.AddSet(w.set(t), nil); err != nil {
			return fmt.Errorf("set %s: %w", w.name, err)
		}
		d.elements = append(d.elements, elementChange{set: w, add: w.elements})
	}
	for _, e := range d.elements {
		s := e.set.set(t)
		err := errors.Join(
			inChunks(e.remove, func(es []nftables.SetElement) error { return c.SetDeleteElements(s, keysOf(es)) }),
			inChunks(e.add, func(es []nftables.SetElement) error { return c.SetAddElements(s, es) }))
		if err != nil {
			return fmt.Errorf("elements of set %s: %w", e.set.name, err)
		}
	}
	for _, w := range slices.Concat(d.write, d.drop) {
		c.FlushChain(w.chain(t))
	}
	for _, w := range d.write {
		for i, comment := range w.comments() {
			c.AddRule(&nftables.Rule{Table: t, Chain: w.chain(t), Exprs: w.rules[i].exprs, UserData: comment})
		}
	}
	for _, w := range d.removed {
		c.DelSet(w.set(t))
	}
	for _, w := range d.drop {
		c.DelChain(w.chain(t))
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change nftables table %s: %w", TableName, err)
	}
	return nil
}

func (c ruleChain) chain(t *nftables.Table) *nftables.Chain {
	out := &nftables.Chain{Table: t, Name: c.name}
	if c.kind != "" {
		policy := nftables.ChainPolicyAccept
		out.Type, out.Hooknum, out.Priority, out.Policy = c.kind, c.hook, new(c.priority), &policy
	}
	return out
}

func (s ruleSet) set(t *nftables.Table) *nftables.Set {
	set := &nftables.Set{Table: t, Name: s.name, KeyType: s.key, Interval: s.interval, Counter: s.counter, Concatenation: strings.Contains(s.key.Name, ".")}
	switch {
	case s.verdicts:
		set.IsMap, set.DataType = true, nftables.TypeVerdict
	case s.data:
		set.IsMap, set.DataType = true, s.key
	}
	return set
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

// Remove deletes the table if it exists.
func Remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.AddTable(table())
	c.DelTable(table())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", TableName, err)
	}
	return nil
}

// nftGeneration returns a number that changes with every transaction of nftables.
func nftGeneration() (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	const family = 4 // length of the header of nfnetlink, before the attributes
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request}, Data: make([]byte, family),
	})
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		if len(a.Data) < family {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(a.Data[family:])
		if err != nil {
			return 0, err
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return attributes.Uint32(), attributes.Err()
			}
		}
	}
	return 0, errors.New("nftables returned no generation")
}
