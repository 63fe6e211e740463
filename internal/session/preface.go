package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/entente-dev/entente/peering"
)

// verdict is what the dialled side sends after the handshake.
type verdict byte

const (
	welcome verdict = iota
	// refusedDuplicate: there is a session already, and it stays.
	refusedDuplicate
	// refusedUntrusted: this side does not trust the dialling cluster.
	refusedUntrusted
	// refusedFull: this side has as many sessions as it can.
	refusedFull
	// refusedDenied: an administrator of this side denied the dialling cluster.
	refusedDenied
	// refusedClock: by this side's clock the dialling cluster's certificate is not
	// valid yet, or no longer.
	refusedClock
)

const (
	prefaceMagic = "ENT1"
	prefaceLen   = 16
)

// RefusedError is the error that a peer proved to be the right one but refused a session.
type RefusedError struct {
	Peer peering.ClusterID
	// Clock is the time by the peer's clock, Now by this cluster's.
	Clock, Now time.Time
	code       verdict
}

func (e *RefusedError) Error() string {
	switch e.code {
	case refusedDuplicate:
		return fmt.Sprintf("%s already has a session with this cluster", e.Peer)
	case refusedUntrusted:
		return fmt.Sprintf("%s does not trust this cluster: it never joined there, or was revoked", e.Peer)
	case refusedFull:
		return fmt.Sprintf("%s has no room for another session", e.Peer)
	case refusedDenied:
		return fmt.Sprintf("an administrator of %s denied this cluster", e.Peer)
	case refusedClock:
		return e.clockText()
	case welcome:
	}
	return fmt.Sprintf("%s refused a session (code %d)", e.Peer, e.code)
}

// clockText names both clocks.
func (e *RefusedError) clockText() string {
	text := fmt.Sprintf("%s does not accept this cluster's certificate by its clock, which says %s; this cluster's says %s",
		e.Peer, e.Clock.UTC().Format(time.RFC3339), e.Now.UTC().Format(time.RFC3339))
	switch skew := e.Clock.Sub(e.Now).Round(time.Second); {
	case skew > 0:
		return fmt.Sprintf("%s, so the peer's is %s ahead: set the clocks right", text, skew)
	case skew < 0:
		return fmt.Sprintf("%s, so the peer's is %s behind: set the clocks right", text, skew.Abs())
	}
	return text + ": this agent does not renew its certificate"
}

// Denied reports whether an administrator of the peer denied this cluster.
func (e *RefusedError) Denied() bool { return e.code == refusedDenied }

// Untrusted reports whether the peer does not trust this cluster.
func (e *RefusedError) Untrusted() bool { return e.code == refusedUntrusted }

// Duplicate reports whether the peer already has a session with this cluster.
func (e *RefusedError) Duplicate() bool { return e.code == refusedDuplicate }

func encodePreface(v verdict, now time.Time) []byte {
	b := append([]byte(prefaceMagic), byte(v), 0, 0, 0)
	return binary.BigEndian.AppendUint64(b, uint64(now.UnixMilli()))
}

// readPreface reads the verdict of the dialled side, and its clock.
func readPreface(r io.Reader) (verdict, time.Time, error) {
	var b [prefaceLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, time.Time{}, err
	}
	if string(b[:4]) != prefaceMagic {
		return 0, time.Time{}, errors.New("the peer does not speak " + protoSession)
	}
	return verdict(b[4]), time.UnixMilli(int64(binary.BigEndian.Uint64(b[8:]))), nil
}
