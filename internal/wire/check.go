package wire

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/peering"
)

// invalid is the error of every function here that reads a message: which field
// of it is wrong, and how.
func invalid(field, format string, args ...any) error {
	return &peering.Error{
		Reason:     peering.ReasonRequestInvalid,
		Message:    "the message breaks the protocol",
		Violations: []peering.Violation{{Field: field, Message: fmt.Sprintf(format, args...)}},
	}
}

// Response turns the error of reading a response into one that blames the peer instead of the
// caller.
func Response(err error) error {
	if err == nil {
		return nil
	}
	e := *FromStatus(err)
	if e.Reason == peering.ReasonRequestInvalid {
		e.Reason = peering.ReasonResponseInvalid
		e.Message = "the peer's response breaks the protocol; its version may not fit this one"
	}
	return &e
}

// checkID accepts the ID of a contract or request: letters, digits, dashes, dots
// and underscores.
func checkID(field, s string) error {
	if s == "" || len(s) > peering.MaxRequestIDLen {
		return invalid(field, "want 1 to %d characters", peering.MaxRequestIDLen)
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return invalid(field, "want letters, digits, dashes, dots and underscores only")
		}
	}
	return nil
}

// checkLabel accepts a DNS label and, since names are optional, the empty string.
func checkLabel(field, s string) error {
	if len(s) > peering.MaxNameLen {
		return invalid(field, "want at most %d characters", peering.MaxNameLen)
	}
	for i, c := range []byte(s) {
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (c != '-' || i == 0 || i == len(s)-1) {
			return invalid(field, "want a DNS label: lower-case letters, digits and dashes")
		}
	}
	return nil
}

func checkEndpoints(field string, list []string) ([]string, error) {
	if err := peering.CheckEndpoints(list); err != nil {
		return nil, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	if len(list) == 0 {
		return nil, nil
	}
	return append([]string(nil), list...), nil
}

func parsePrefix(field, s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p != p.Masked() || p.Addr().Is4In6() {
		return netip.Prefix{}, invalid(field, "want a prefix like 10.0.0.0/16 with no bits beyond its length")
	}
	return p, nil
}

func readTime(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, invalid(field, "want a time from year 1 to 9999")
	}
	return t.AsTime(), nil
}

func writeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// readDuration accepts an unset duration as 0.
func readDuration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 || d.AsDuration() > peering.MaxDuration {
		return 0, invalid(field, "must be positive and at most %s", peering.MaxDuration)
	}
	return d.AsDuration(), nil
}

func writeDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// cleanString accepts s if it is at most n bytes of printable text.
func cleanString(field, s string, n int) (string, error) {
	if len(s) > n || !utf8.ValidString(s) || peering.Text(s, n) != s {
		return "", invalid(field, "want at most %d bytes of printable text", n)
	}
	return s, nil
}

// keep returns a function that stores a value in to, and an error in err unless one is there
// already.
func keep[T any](err *error, to *T) func(T, error) {
	return func(v T, failed error) {
		*to, *err = v, cmp.Or(*err, failed)
	}
}

// readAll reads the elements of a list, which may have at most most.
func readAll[M, T any](field string, list []M, most int, read func(field string, m M) (T, error)) ([]T, error) {
	if len(list) > most {
		return nil, invalid(field, "want at most %d", most)
	}
	var out []T
	for i, m := range list {
		v, err := read(index(field, i), m)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// read returns the value that was read, or the zero value with an error.
func read[T any](v T, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }
