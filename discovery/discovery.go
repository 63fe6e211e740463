// Package discovery finds clusters, and lets them be found: on a LAN by mDNS
// (RFC 6762, package mdns), in a domain by unicast DNS (package dnssd), both as
// services of DNS-SD (RFC 6763).
//
// Everything that is found is a hint: nothing on a LAN or in a domain proves who published it.
// Clusters authenticate each other when they join.
package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/entente-dev/entente/peering"
)

const (
	// ServiceType is the type of a peering agent's service (RFC 6763 section 7).
	ServiceType = "_entente._tcp"
	// SubtypeAutomatic is the subtype (section 7.1) of clusters that peer automatically with those
	// that their policy names.
	SubtypeAutomatic = "_automatic"

	// textVersion is the version of the keys in a TXT record (section 6.7).
	textVersion = "1"

	// MaxLabel bounds an instance's name, a DNS label.
	MaxLabel = 63
	// MaxText bounds a TXT record: section 6.2 recommends 1300 bytes at most, to fit a packet.
	MaxText = 1300
	// MaxTextStrings is how many strings a TXT record may have.
	MaxTextStrings = 32
	// maxValue is how many bytes are kept of a value without a format of its own.
	maxValue = 64
	// MaxAddresses is how many addresses an instance may have.
	MaxAddresses = peering.MaxEndpoints
)

// A Service is what a cluster publishes about itself. Its records are built by rebuild in
// mdns/claim.go and by dnssd.Records; a new key of the TXT record belongs in [Text], and, for LANs,
// in v1alpha1.PublishedCluster.
type Service struct {
	// Instance is the name that users see, 1 to [MaxLabel] bytes of UTF-8. A publisher that finds
	// it taken changes it: see [Rename].
	Instance string
	// Host is the first label of the host name to which Addresses belong.
	Host string
	// Port is the port of the peering agent.
	Port uint16
	// Addresses are those of the host. Without any, they are those of the publishing interface.
	Addresses []netip.Addr
	Text      Text
	// Automatic publishes it under [SubtypeAutomatic], too.
	Automatic bool
}

// A Found is a cluster that was found, as described by its records.
type Found struct {
	// Instance is the name under which it was found, without type and domain.
	Instance string
	Text
	Automatic bool
	// Endpoints are host:port, at most [peering.MaxEndpoints], each valid for
	// [peering.CheckEndpoint].
	Endpoints []string
	// Where is the network interface or the domain where it was found.
	Where string
	// From are the source addresses, in order, of the packets on a LAN that have the instance's
	// endpoints. Any machine on the link can forge them. A domain has none.
	From []netip.Addr
	// Seen is when its records were last received, and Until when it is forgotten unless they are
	// received again.
	Seen, Until time.Time
}

// Text is the content of an instance's TXT record (RFC 6763 section 6).
type Text struct {
	// ID is the cluster ID that it claims.
	ID peering.ClusterID
	// Name is the cluster's own name; it may be "".
	Name string
	// API is the range of protocol revisions that it supports, as "1-2".
	API string
	// Fingerprint is the beginning of the SHA-256 of its trust bundle in hexadecimal; it may be "".
	// A cluster that knows another bundle of that cluster can tell that one of the two is old, or
	// forged.
	Fingerprint string
}

// Keys of a TXT record. Unknown keys are ignored, as later versions may add some.
const (
	keyVersion     = "txtvers"
	keyID          = "id"
	keyName        = "name"
	keyAPI         = "api"
	keyFingerprint = "fp"
)

// Strings returns the strings of the TXT record, "txtvers" first (section 6.7).
func (t Text) Strings() []string {
	out := []string{keyVersion + "=" + textVersion, keyID + "=" + string(t.ID)}
	for _, kv := range [][2]string{{keyName, t.Name}, {keyAPI, t.API}, {keyFingerprint, t.Fingerprint}} {
		if kv[1] != "" {
			out = append(out, kv[0]+"="+peering.Text(kv[1], maxValue))
		}
	}
	return out
}

// ParseText parses the strings of a TXT record. It fails unless they describe a cluster, in a
// version that this one understands. It clips texts and makes them printable.
func ParseText(list []string) (Text, error) {
	values, err := textValues(list)
	if err != nil {
		return Text{}, err
	}
	if v, ok := values[keyVersion]; ok && v != textVersion {
		return Text{}, fmt.Errorf("TXT record of version %q, want %q", peering.Text(v, maxValue), textVersion)
	}
	id, err := peering.ParseClusterID(values[keyID])
	if err != nil {
		return Text{}, fmt.Errorf("TXT record: %w", err)
	}
	t := Text{ID: id}
	for key, to := range map[string]*string{keyName: &t.Name, keyAPI: &t.API, keyFingerprint: &t.Fingerprint} {
		*to = strings.TrimSpace(peering.Text(values[key], maxValue))
	}
	return t, nil
}

// textValues returns the values by key, in lower case: keys are case-insensitive, and the first of
// equal ones counts (section 6.4). It leaves out keys without a value, and strings without a key.
func textValues(list []string) (map[string]string, error) {
	if len(list) > MaxTextStrings {
		return nil, fmt.Errorf("TXT record of %d strings; the limit is %d", len(list), MaxTextStrings)
	}
	values, size := map[string]string{}, 0
	for _, s := range list {
		if size += len(s) + 1; size > MaxText {
			return nil, fmt.Errorf("TXT record exceeds %d bytes", MaxText)
		}
		key, value, ok := strings.Cut(s, "=")
		if key = strings.ToLower(key); !ok || key == "" {
			continue
		}
		if _, twice := values[key]; !twice {
			values[key] = value
		}
	}
	return values, nil
}

// Check checks that a service can be published.
func (s Service) Check() error {
	switch {
	case s.Instance == "" || len(s.Instance) > MaxLabel:
		return fmt.Errorf("the instance's name has %d bytes, want 1 to %d", len(s.Instance), MaxLabel)
	case peering.Text(s.Instance, MaxLabel) != s.Instance:
		return errors.New("the instance's name has characters that are not printable")
	case peering.CheckEndpoint(s.Host+":1") != nil || strings.Contains(s.Host, "."):
		return fmt.Errorf("host %q is not a DNS label", s.Host)
	case s.Port == 0:
		return errors.New("no port")
	case len(s.Addresses) > MaxAddresses:
		return fmt.Errorf("%d addresses; the limit is %d", len(s.Addresses), MaxAddresses)
	case slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() || a.IsMulticast() }):
		return errors.New("invalid address")
	}
	_, err := ParseText(s.Text.Strings())
	return err
}

// Rename returns the name to try after one that is taken: "office" becomes "office (2)", and that
// "office (3)" (RFC 6763 appendix D), within [MaxLabel] bytes.
func Rename(name string) string {
	base, n := numbered(name, " (", ")")
	suffix := fmt.Sprintf(" (%d)", n+1)
	return peering.Text(base, MaxLabel-len(suffix)) + suffix
}

// RenameHost is Rename for the label of a host: "office" becomes "office-2".
func RenameHost(label string) string {
	base, n := numbered(label, "-", "")
	suffix := fmt.Sprintf("-%d", n+1)
	return strings.TrimRight(base[:min(len(base), MaxLabel-len(suffix))], "-") + suffix
}

// numbered splits the number from a name; without one it is 1.
func numbered(name, before, after string) (base string, n int) {
	if at := strings.LastIndex(name, before); at > 0 {
		text, ok := strings.CutSuffix(name[at+len(before):], after)
		n, err := strconv.Atoi(text)
		if ok && err == nil && n > 1 && n < 1<<20 && strconv.Itoa(n) == text {
			return name[:at], n
		}
	}
	return name, 1
}
