// Package notify has what loops wait for: a channel that tells that something changed, and time.
package notify

// Channel has a value once something happened since it was last received from.
type Channel chan struct{}

// New returns a channel without a value.
func New() Channel { return make(Channel, 1) }

// Notify has the channel have a value, and never blocks.
func (c Channel) Notify() {
	select {
	case c <- struct{}{}:
	default:
	}
}
