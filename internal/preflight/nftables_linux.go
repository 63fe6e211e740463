package preflight

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errNFTables says that the fabric cannot use nftables.
var errNFTables = errors.New("cannot list chains")

// fabricTable is the fabric's own table.
const fabricTable = "entente"

// observeChains reads the chains that forwarded packets pass, and those that they lead to. These
// include the chains of the iptables that is built on nftables.
func observeChains(names map[int]string) ([]Chain, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNFTables, err)
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNFTables, err)
	}
	known, next := chainsOf(all)
	var out []Chain
	read, rules := map[*nftables.Chain]bool{}, 0
	elements := func(t *nftables.Table) func(string) []nftables.SetElement {
		return func(set string) []nftables.SetElement {
			if !strings.HasPrefix(set, "__") { // one with a name may be large, and changes
				return nil
			}
			have, _ := conn.GetSetElements(&nftables.Set{Table: t, Name: set})
			return have[:min(len(have), maxElements+1)]
		}
	}
	for len(next) > 0 && len(out) < maxChains && rules < maxRules {
		c := next[0]
		next = next[1:]
		if read[c] {
			continue
		}
		read[c] = true
		have, err := rulesOf(conn, c)
		if errors.Is(err, unix.ENOENT) {
			continue // it was deleted meanwhile, with the rules that lead to it
		}
		if err != nil {
			return out, fmt.Errorf("list rules of chain %s of table %s: %w", c.Name, tableText(c.Table), err)
		}
		rules += len(have)
		chain := Chain{
			Table: tableText(c.Table), Name: c.Name, Base: c.Hooknum != nil, Drop: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop,
			Four: c.Table.Family != nftables.TableFamilyIPv6, Six: c.Table.Family != nftables.TableFamilyIPv4,
		}
		for _, r := range have {
			chain.Rules = append(chain.Rules, filterRules(c.Table.Family, r.Exprs, names, elements(c.Table))...)
		}
		for _, r := range chain.Rules {
			if target := known[[2]string{chain.Table, r.Target}]; target != nil {
				next = append(next, target)
			}
		}
		out = append(out, chain)
	}
	return out, nil
}

// chainsOf returns the chains of IP by table and name, and those that forwarded packets pass
// first, except the fabric's own.
func chainsOf(all []*nftables.Chain) (known map[[2]string]*nftables.Chain, forward []*nftables.Chain) {
	known = map[[2]string]*nftables.Chain{}
	for _, c := range all {
		family := c.Table.Family
		if family != nftables.TableFamilyIPv4 && family != nftables.TableFamilyIPv6 && family != nftables.TableFamilyINet {
			continue
		}
		known[[2]string{tableText(c.Table), c.Name}] = c
		if c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && !(family == nftables.TableFamilyINet && c.Table.Name == fabricTable) {
			forward = append(forward, c)
		}
	}
	return known, forward
}

// rulesOf lists the rules of a chain. Any program may have made them, and a panic of the library while it
// reads one must not end the fabric.
func rulesOf(conn *nftables.Conn, c *nftables.Chain) (rules []*nftables.Rule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a rule cannot be read: %v", p)
		}
	}()
	return conn.GetRules(c.Table, c)
}

func tableText(t *nftables.Table) string {
	family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}[t.Family]
	return family + " " + t.Name
}

// filterRules returns a rule as far as its result can be predicted: several rules if it ends
// in a map of verdicts. elements lists those of a set; it returns none for an unknown one.
func filterRules(family nftables.TableFamily, exprs []expr.Any, names map[int]string, elements func(set string) []nftables.SetElement) []FilterRule {
	// A table of family inet has both families; then a rule may select one.
	r := ruleReader{names: names, elements: elements, loaded: map[uint32]load{}, family: byte(family)}
	for _, e := range exprs {
		r.read(e)
	}
	if r.cases == nil {
		return []FilterRule{r.out}
	}
	for i := range r.cases {
		r.cases[i].Tests = slices.Concat(r.out.Tests, r.cases[i].Tests)
	}
	return r.cases
}

// load is the content of a register.
type load struct {
	kind   loadKind
	length int
	mask   []byte
}

type loadKind int

const (
	unknownLoad loadKind = iota
	inName
	outName
	inIndex
	outIndex
	sourceAddr
	destinationAddr
	state
	status
	mark
	layer3
	layer4
)

// ruleReader follows the registers of a rule. A register is forgotten once it was used:
// the library passes over expressions that it does not know, which may load it again.
type ruleReader struct {
	out      FilterRule
	cases    []FilterRule
	family   byte
	names    map[int]string
	elements func(set string) []nftables.SetElement
	loaded   map[uint32]load
}

func (r *ruleReader) read(e expr.Any) {
	switch e := e.(type) {
	case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Exthdr:
	case *expr.Meta:
		if !e.SourceRegister {
			r.loaded[e.Register] = load{kind: map[expr.MetaKey]loadKind{
				expr.MetaKeyIIFNAME: inName, expr.MetaKeyOIFNAME: outName, expr.MetaKeyIIF: inIndex, expr.MetaKeyOIF: outIndex,
				expr.MetaKeyMARK: mark, expr.MetaKeyNFPROTO: layer3, expr.MetaKeyL4PROTO: layer4,
			}[e.Key]}
		}
	case *expr.Ct:
		if !e.SourceRegister {
			r.loaded[e.Register] = load{kind: map[expr.CtKey]loadKind{expr.CtKeySTATE: state, expr.CtKeySTATUS: status}[e.Key]}
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			r.loaded[e.DestRegister] = load{kind: r.field(e), length: int(e.Len)}
		}
	case *expr.Bitwise:
		l := r.loaded[e.SourceRegister]
		delete(r.loaded, e.SourceRegister)
		if slices.ContainsFunc(e.Xor, func(b byte) bool { return b != 0 }) || l.mask != nil {
			l.kind = unknownLoad
		}
		l.mask = e.Mask
		r.loaded[e.DestRegister] = l
	case *expr.Cmp:
		r.compare(e)
	case *expr.Lookup:
		r.lookup(e)
	case *expr.Match:
		r.match(e)
	case *expr.Immediate:
		delete(r.loaded, e.Register)
	case *expr.Verdict:
		r.out.verdict(e)
	case *expr.Reject:
		r.out.Verdict = Drop
	case *expr.Target:
		r.target(e.Name)
	default: // a limit, a set that changes, a queue, and what else there may be
		r.test(Test{Key: Other})
	}
}

func (r *ruleReader) test(t Test) { r.out.Tests = append(r.out.Tests, t) }

// field returns the kind of a part of the network header.
func (r *ruleReader) field(e *expr.Payload) loadKind {
	if e.Base != expr.PayloadBaseNetworkHeader {
		return unknownLoad
	}
	switch {
	case r.family == unix.NFPROTO_IPV4 && e.Offset == 12 && e.Len <= 4, r.family == unix.NFPROTO_IPV6 && e.Offset == 8 && e.Len <= 16:
		return sourceAddr
	case r.family == unix.NFPROTO_IPV4 && e.Offset == 16 && e.Len <= 4, r.family == unix.NFPROTO_IPV6 && e.Offset == 24 && e.Len <= 16:
		return destinationAddr
	case r.family == unix.NFPROTO_IPV4 && e.Offset == 9 && e.Len == 1, r.family == unix.NFPROTO_IPV6 && e.Offset == 6 && e.Len == 1:
		return layer4
	}
	return unknownLoad
}

func (r *ruleReader) compare(e *expr.Cmp) {
	l := r.loaded[e.Register]
	delete(r.loaded, e.Register)
	if e.Op != expr.CmpOpEq && e.Op != expr.CmpOpNeq {
		r.test(Test{Key: Other})
		return
	}
	t := l.test(e.Data, r)
	t.Not = t.Not != (e.Op == expr.CmpOpNeq)
	r.test(t)
	if l.kind == layer3 && !t.Not && len(e.Data) > 0 {
		r.family = e.Data[0]
	}
}

// test returns the test that a loaded field equals data.
func (l load) test(data []byte, r *ruleReader) Test {
	other := Test{Key: Other}
	switch l.kind {
	case inName, outName:
		if l.mask != nil {
			return other
		}
		return Test{Key: map[loadKind]Key{inName: In, outName: Out}[l.kind], Name: interfaceName(data)}
	case inIndex, outIndex:
		if len(data) != 4 || l.mask != nil || r.names[int(binaryutil.NativeEndian.Uint32(data))] == "" {
			return other
		}
		return Test{Key: map[loadKind]Key{inIndex: In, outIndex: Out}[l.kind], Name: r.names[int(binaryutil.NativeEndian.Uint32(data))]}
	case sourceAddr, destinationAddr:
		if p := l.prefix(data, r.family); p.IsValid() {
			return Test{Key: map[loadKind]Key{sourceAddr: Source, destinationAddr: Destination}[l.kind], Prefix: p}
		}
	case state, status, mark:
		if len(l.mask) != 4 || len(data) != 4 {
			return other
		}
		mask, value := binaryutil.NativeEndian.Uint32(l.mask), binaryutil.NativeEndian.Uint32(data)
		return maskedTest(l.kind, mask, value)
	case layer4:
		if len(data) == 1 && l.mask == nil {
			return Test{Key: Protocol, Bits: uint32(data[0])}
		}
	case layer3:
		if len(data) == 1 && l.mask == nil {
			return Test{Key: Family, Bits: uint32(data[0])}
		}
	case unknownLoad:
	}
	return other
}

const (
	statusNAT = 1<<4 | 1<<5 // IPS_SRC_NAT, IPS_DST_NAT
	// kubeProxyMark is the mark of packets whose source kube-proxy changes.
	kubeProxyMark = 1 << 14
)

// maskedTest returns the test that bits of a field have a value.
func maskedTest(kind loadKind, mask, value uint32) Test {
	switch {
	case kind == state && value == 0:
		return Test{Key: State, Bits: mask, Not: true}
	case kind == state && value == mask:
		return Test{Key: State, Bits: mask}
	case kind == status && mask&^statusNAT == 0 && value == 0:
		return Test{Key: Never, Not: true}
	case kind == mark && mask == kubeProxyMark:
		return Test{Key: Never, Not: value == 0}
	}
	return Test{Key: Other}
}

// prefix returns the prefix with which a part of an address, or a masked address, is compared.
func (l load) prefix(data []byte, family byte) netip.Prefix {
	size := map[byte]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 16}[family]
	if len(data) != l.length || len(data) > size || l.mask != nil && len(l.mask) != len(data) {
		return netip.Prefix{}
	}
	bits := len(data) * 8
	if l.mask != nil {
		ones := 0
		for i := range bits {
			if l.mask[i/8]&(0x80>>(i%8)) != 0 {
				if ones < i {
					return netip.Prefix{} // not the mask of a prefix
				}
				ones++
			}
		}
		bits = ones
	}
	addr, _ := netip.AddrFromSlice(append(slices.Clone(data), make([]byte, size-len(data))...))
	return netip.PrefixFrom(addr, bits)
}

// interfaceName returns the name of an interface, or a prefix of names, if the zero at its end is not
// compared.
func interfaceName(data []byte) string {
	if name, _, whole := bytes.Cut(data, []byte{0}); whole {
		return string(name)
	}
	return string(data) + "*"
}

// match reads a match of iptables.
func (r *ruleReader) match(e *expr.Match) {
	if e.Name == "comment" {
		return
	}
	if e.Name == "conntrack" {
		if c, ok := e.Info.(*xt.ConntrackMtinfo3); ok && c.MatchFlags == conntrackState {
			r.test(Test{Key: State, Bits: uint32(c.StateMask), Not: c.InvertFlags&conntrackState != 0})
			return
		}
	}
	r.test(Test{Key: Other})
}

// conntrackState is XT_CONNTRACK_STATE.
const conntrackState = 1

func (r *FilterRule) verdict(e *expr.Verdict) {
	switch e.Kind {
	case expr.VerdictAccept:
		r.Verdict = Accept
	case expr.VerdictDrop:
		r.Verdict = Drop
	case expr.VerdictReturn:
		r.Verdict = Return
	case expr.VerdictJump:
		r.Verdict, r.Target = Jump, e.Chain
	case expr.VerdictGoto:
		r.Verdict, r.Target = Goto, e.Chain
	case expr.VerdictContinue, expr.VerdictBreak:
	default:
		r.Verdict = Undecided
	}
}

// lookup reads the test whether a field is in a set, or its verdict in a map.
func (r *ruleReader) lookup(e *expr.Lookup) {
	l := r.loaded[e.SourceRegister]
	delete(r.loaded, e.SourceRegister)
	var have []nftables.SetElement
	if l.kind != unknownLoad && l.mask == nil {
		have = r.elements(e.SetName)
	}
	var tests []Test
	var cases []FilterRule
	known := len(have) > 0 && len(have) <= maxElements
	for _, element := range have {
		known = known && !element.IntervalEnd && element.KeyEnd == nil // no prefixes and ranges
		one := FilterRule{Tests: []Test{l.element(element.Key, r)}}
		one.verdict(verdictOf(element.Val))
		tests, cases = append(tests, one.Tests...), append(cases, one)
	}
	switch {
	case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT && known:
		r.cases = cases
	case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT:
		r.out.Verdict = Undecided
	case e.IsDestRegSet: // a map of data
		delete(r.loaded, e.DestRegister)
	case known:
		r.test(Test{Key: AnyOf, Any: tests, Not: e.Invert})
	default:
		r.test(Test{Key: Other})
	}
}

// element returns the test that a loaded field is an element of a set.
func (l load) element(key []byte, r *ruleReader) Test {
	if l.kind == state && len(key) == 4 {
		return Test{Key: State, Bits: binaryutil.NativeEndian.Uint32(key)}
	}
	return l.test(key, r)
}

// verdictOf returns the verdict of an element of a map, which the kernel encodes as attributes.
// A malformed one counts as undecided.
func verdictOf(b []byte) *expr.Verdict {
	out := &expr.Verdict{Kind: expr.VerdictQueue}
	attributes, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return out
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_VERDICT_CODE:
			out.Kind = expr.VerdictKind(int32(attributes.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			out.Chain = attributes.String()
		}
	}
	if attributes.Err() != nil {
		return &expr.Verdict{Kind: expr.VerdictQueue}
	}
	return out
}

// target reads a target of iptables.
func (r *ruleReader) target(name string) {
	switch name {
	case "REJECT":
		r.out.Verdict = Drop
	case "LOG", "NFLOG", "MARK", "CONNMARK", "TCPMSS", "CT", "TRACE", "AUDIT", "CLASSIFY", "DSCP":
	default:
		r.out.Verdict = Undecided
	}
}
