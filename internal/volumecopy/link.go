package volumecopy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// message is a message of one side to the other, in addition to the archive.
type message struct {
	// Do is the sender's request: copy, digest or done.
	Do string `json:"do,omitempty"`
	// All announces that all files are sent, whatever the destination has.
	All bool `json:"all,omitempty"`
	// Finished means that the destination is not written to.
	Finished bool `json:"finished,omitempty"`
	// Keys is how many identities of files follow.
	Keys int  `json:"keys,omitempty"`
	Sum  *Sum `json:"sum,omitempty"`
	// Error is why the receiver cannot do what was requested.
	Error string `json:"error,omitempty"`
}

// Requests of the sender.
const (
	doCopy   = "copy"
	doDigest = "digest"
	doDone   = "done"
)

// link is a connection to the other side.
type link struct {
	net.Conn
	in  *bufio.Reader
	out *bufio.Writer
}

func newLink(c net.Conn) *link {
	l := &link{Conn: c}
	l.in, l.out = bufio.NewReaderSize(c, 256<<10), bufio.NewWriterSize(patient{c}, 256<<10)
	return l
}

// patient is a connection whose other side may receive nothing for a while. While it is silent, TCP
// keepalives show whether it is there.
type patient struct{ net.Conn }

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

func keepalive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 6}
}

func (l *link) send(m message) error {
	text, err := json.Marshal(m)
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	if err == nil {
		err = l.out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write to the other side: %w", err)
	}
	return nil
}

func (l *link) receive() (message, error) {
	m, err := readMessage(l.in)
	if err == nil && m.Error != "" {
		err = fmt.Errorf("the other side: %q", m.Error)
	}
	return m, err
}

// readMessage reads a line of at most maxMessage bytes.
func readMessage(in *bufio.Reader) (message, error) {
	var m message
	var line []byte
	for {
		b, err := in.ReadByte()
		if err != nil {
			return m, fmt.Errorf("read from the other side: %w", err)
		}
		if b == '\n' {
			break
		}
		if line = append(line, b); len(line) > maxMessage {
			return m, fmt.Errorf("message exceeds %d bytes", maxMessage)
		}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("malformed message from the other side: %w", err)
	}
	if m.Keys < 0 || m.Keys > maxEntries {
		return m, fmt.Errorf("the other side has %d files, the limit is %d", m.Keys, maxEntries)
	}
	return m, nil
}

func (l *link) sendKeys(keys []key) error {
	if err := l.send(message{Keys: len(keys)}); err != nil {
		return err
	}
	for _, k := range keys {
		if _, err := l.out.Write(k[:]); err != nil {
			return fmt.Errorf("write to the other side: %w", err)
		}
	}
	return l.out.Flush()
}

func (l *link) receiveKeys(n int) (map[key]bool, error) {
	keys := map[key]bool{}
	for range n {
		var k key
		if _, err := io.ReadFull(l.in, k[:]); err != nil {
			return nil, fmt.Errorf("read from the other side: %w", err)
		}
		keys[k] = true
	}
	return keys, nil
}
