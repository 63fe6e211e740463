package peering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxInterfaceName is Linux' IFNAMSIZ without the end.
const maxInterfaceName = 15

// CheckEndpoint checks that s is host:port, where host is a DNS name, an IPv4
// address or a bracketed IPv6 address, and port is from 1 to 65535 in decimal.
func CheckEndpoint(s string) error {
	if len(s) > MaxEndpointLen {
		return fmt.Errorf("endpoint has %d characters, more than %d", len(s), MaxEndpointLen)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("endpoint %q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("endpoint %q: port is not a number from 1 to 65535", s)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		// The zone of a link-local address is an interface's name.
		if zone := addr.Zone(); len(zone) > maxInterfaceName || !onlyNameChars(zone) {
			return fmt.Errorf("endpoint %q: zone is not the name of an interface", s)
		}
		return nil
	}
	if err := checkDNSName(host); err != nil {
		return fmt.Errorf("endpoint %q: host is neither an IP address nor a DNS name: %w", s, err)
	}
	return nil
}

// CheckEndpoints checks each endpoint of a list, and its length.
func CheckEndpoints(list []string) error {
	if len(list) > MaxEndpoints {
		return fmt.Errorf("%d endpoints, more than %d", len(list), MaxEndpoints)
	}
	for _, e := range list {
		if err := CheckEndpoint(e); err != nil {
			return err
		}
	}
	return nil
}

// checkDNSName checks a host name: labels of letters, digits and inner hyphens,
// at most 253 characters, one trailing dot allowed.
func checkDNSName(s string) error {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return errors.New("length is not from 1 to 253")
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return errors.New("a label's length is not from 1 to 63")
		}
		if !isLabel(letters+digits, label) {
			return errors.New("a label has other characters than letters, digits and inner hyphens")
		}
	}
	return nil
}
