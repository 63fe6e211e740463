package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// ReadTotals returns the counters of the rules, and for some rules those of each peer by its aliases. It
// reads all rules in one request, and each set in one more, for any number of peers.
func ReadTotals(peers []plan.Peer) (Totals, error) {
	out := newTotals()
	if err := eachCounter(out.add); err != nil {
		return out, fmt.Errorf("read counters of nftables: %w", err)
	}
	aliases := aliasOwners(peers)
	err := eachElement(setRefused, func(a netip.Addr, e nftables.SetElement) {
		if e.Counter != nil && e.Counter.Packets > 0 {
			d := Drop{NotExposed, aliases.of(a)}
			out.Dropped[d] = out.Dropped[d].plus(Count{e.Counter.Packets, e.Counter.Bytes})
		}
	})
	return out, err
}

// owners are the peers that have aliases, sorted by alias.
type owners []owner

type owner struct {
	alias   netip.Prefix
	cluster string
}

func aliasOwners(peers []plan.Peer) owners {
	var out owners
	for _, p := range peers {
		for _, a := range p.Aliases() {
			out = append(out, owner{a, p.ClusterID})
		}
	}
	slices.SortFunc(out, func(a, b owner) int { return a.alias.Compare(b.alias) })
	return out
}

// of returns the peer that has an alias, or an empty string.
func (o owners) of(a netip.Addr) string {
	i, exact := slices.BinarySearchFunc(o, a, func(o owner, a netip.Addr) int { return o.alias.Addr().Compare(a) })
	if !exact {
		i--
	}
	if i < 0 || !o[i].alias.Contains(a) {
		return ""
	}
	return o[i].cluster
}

// eachCounter reads the rules of all chains of the table in one request: the library would make one for
// each chain. It calls do with the comment and the counter of each rule that has one.
func eachCounter(do func(text string, n Count)) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadBuffer(netlinkBuffer) // as much of it as is allowed
	name, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(TableName + "\x00")}})
	if err != nil {
		return err
	}
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_INET, 0, 0, 0}, name...),
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		text, n, counts, err := decodeRule(a.Data)
		if err != nil {
			return err
		}
		if counts {
			do(text, n)
		}
	}
	return nil
}

// decodeRule reads the comment of a rule, as the kernel sends it, and its counter, if it has one.
func decodeRule(b []byte) (text string, n Count, counts bool, err error) {
	const family = 4 // length of the header of nfnetlink
	if len(b) < family {
		return "", n, false, nil
	}
	attributes, err := netlink.NewAttributeDecoder(b[family:])
	if err != nil {
		return "", n, false, err
	}
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_RULE_USERDATA:
			text = purpose(attributes.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			attributes.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(e *netlink.AttributeDecoder) error {
						found, err := decodeCounter(e, &n)
						counts = counts || found
						return err
					})
				}
				return nil
			})
		}
	}
	return text, n, counts, attributes.Err()
}

// decodeCounter reads an expression, if that is a counter.
func decodeCounter(e *netlink.AttributeDecoder, count *Count) (found bool, err error) {
	for e.Next() {
		switch e.Type() {
		case unix.NFTA_EXPR_NAME:
			found = e.String() == "counter"
		case unix.NFTA_EXPR_DATA:
			if !found {
				continue
			}
			e.Nested(func(data *netlink.AttributeDecoder) error {
				data.ByteOrder = binary.BigEndian
				for data.Next() {
					switch data.Type() {
					case unix.NFTA_COUNTER_BYTES:
						count.Bytes = data.Uint64()
					case unix.NFTA_COUNTER_PACKETS:
						count.Packets = data.Uint64()
					}
				}
				return nil
			})
		}
	}
	return found, e.Err()
}
