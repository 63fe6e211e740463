package discovery

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/entente-dev/entente/peering"
)

// NewService returns what a cluster publishes about itself: its name, and those of its endpoints,
// as host:port, that are addresses others may dial and have the port of the first such one. If
// there is none, the service has no addresses, and the port of the first endpoint.
func NewService(id peering.ClusterID, name string, protocol uint32, endpoints []string) Service {
	s := Service{
		Instance: name, Host: "entente-" + id.Short(),
		Text: Text{ID: id, Name: name, API: strconv.FormatUint(uint64(protocol), 10)},
	}
	var first uint16
	for _, e := range endpoints {
		at := strings.LastIndexByte(e, ':')
		if port, err := strconv.ParseUint(e[at+1:], 10, 16); err == nil && first == 0 {
			first = uint16(port)
		}
		endpoint, err := netip.ParseAddrPort(e)
		if err != nil || endpoint.Port() == 0 || Dialable(endpoint.Addr()) != nil {
			continue
		}
		s.Port = cmp.Or(s.Port, endpoint.Port())
		if addr := endpoint.Addr().Unmap(); endpoint.Port() == s.Port && !slices.Contains(s.Addresses, addr) && len(s.Addresses) < MaxAddresses {
			s.Addresses = append(s.Addresses, addr)
		}
	}
	s.Port = cmp.Or(s.Port, first)
	return s
}
