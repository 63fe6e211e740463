package e2e

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// frame makes an Ethernet frame with an IPv4 packet.
func frame(protocol byte, from, to uint16, seq uint32, flags byte, payload []byte) []byte {
	var head []byte
	if protocol == protocolUDP {
		head = make([]byte, 8)
	} else {
		head = make([]byte, 20)
		binary.BigEndian.PutUint32(head[4:], seq)
		head[12], head[13] = 5<<4, flags
	}
	binary.BigEndian.PutUint16(head, from)
	binary.BigEndian.PutUint16(head[2:], to)
	ip := make([]byte, 20)
	ip[0], ip[9] = 0x45, protocol
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(head)+len(payload)))
	copy(ip[12:], []byte{172, 30, 1, 11, 172, 30, 2, 11})
	ether := make([]byte, etherHeader)
	binary.BigEndian.PutUint16(ether[12:], etherTypeIPv4)
	return append(append(append(ether, ip...), head...), payload...)
}

func record(kind byte, n int) []byte {
	b := make([]byte, tlsHeader+n)
	b[0], b[1], b[2] = kind, 3, 3
	binary.BigEndian.PutUint16(b[3:], uint16(n))
	return b
}

func writePcap(t *testing.T, frames ...[]byte) string {
	t.Helper()
	b := make([]byte, pcapHeader)
	binary.LittleEndian.PutUint32(b, pcapMagic)
	binary.LittleEndian.PutUint32(b[20:], 1)
	for _, f := range frames {
		head := make([]byte, pcapPacket)
		binary.LittleEndian.PutUint32(head[8:], uint32(len(f)))
		binary.LittleEndian.PutUint32(head[12:], uint32(len(f)))
		b = append(append(b, head...), f...)
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReadTrafficFindsPlaintext(t *testing.T) {
	wireguard := append([]byte{4, 0, 0, 0}, make([]byte, 60)...)
	hello, data := record(22, 300), record(23, 1000)
	tests := map[string]struct {
		frames [][]byte
		want   Traffic
		other  string
	}{
		"WireGuard is known by port and form": {
			frames: [][]byte{frame(protocolUDP, 51820, 51820, 0, 0, wireguard)},
			want:   Traffic{WireGuard: 1},
		},
		"UDP on the port that is not WireGuard is another": {
			frames: [][]byte{frame(protocolUDP, 51820, 51820, 0, 0, []byte(strings.Repeat("GET / HTTP", 5)))},
			want:   Traffic{Others: 1}, other: "protocol 17",
		},
		"TLS is followed over segments": {
			frames: [][]byte{
				frame(protocolTCP, 40000, PeerNodePort, 99, tcpFlagSYN, nil),
				frame(protocolTCP, 40000, PeerNodePort, 100, 0, hello[:100]),
				frame(protocolTCP, 40000, PeerNodePort, 200, 0, append(hello[100:], data[:10]...)),
				frame(protocolTCP, 40000, PeerNodePort, 200, 0, append(hello[100:], data[:10]...)),
				frame(protocolTCP, 40000, PeerNodePort, 415, 0, data[10:]),
			},
			want: Traffic{TLS: 5, Records: 2},
		},
		"a recording that begins in the middle finds the next record": {
			frames: [][]byte{
				frame(protocolTCP, PeerNodePort, 40000, 7, 0, []byte("the end of a record")),
				frame(protocolTCP, PeerNodePort, 40000, 26, 0, data),
			},
			want: Traffic{TLS: 2, Records: 1},
		},
		"HTTP on the port of TLS is another": {
			frames: [][]byte{
				frame(protocolTCP, 40000, PeerNodePort, 99, tcpFlagSYN, nil),
				frame(protocolTCP, 40000, PeerNodePort, 100, 0, []byte("GET / HTTP/1.1\r\n")),
			},
			want: Traffic{TLS: 2, Others: 1}, other: "not a TLS record",
		},
		"a connection that never has a record is another": {
			frames: [][]byte{frame(protocolTCP, 40000, PeerNodePort, 100, 0, []byte("GET / HTTP/1.1\r\n"))},
			want:   Traffic{TLS: 1, Others: 1}, other: "16 bytes that are not TLS",
		},
		"other ports and protocols are others": {
			frames: [][]byte{frame(protocolTCP, 40000, 6443, 1, 0, data), frame(47, 0, 0, 0, 0, nil)},
			want:   Traffic{Others: 2}, other: "172.30.2.11:6443",
		},
		"a word that can be read is another": {
			frames: [][]byte{frame(protocolUDP, 51820, 51820, 0, 0, append(wireguard, "the secret word"...))},
			want:   Traffic{WireGuard: 1, Others: 1}, other: "secret word",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadTraffic(writePcap(t, test.frames...), "the secret word")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(got.Other, "\n"), test.other) {
				t.Errorf("others are %q, want %q among them", got.Other, test.other)
			}
			got.Bytes, got.Other = 0, nil
			if got.WireGuard != test.want.WireGuard || got.TLS != test.want.TLS || got.Records != test.want.Records || got.Others != test.want.Others {
				t.Errorf("traffic is %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestReadTrafficRefusesMalformedRecordings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcap")
	for name, content := range map[string]string{"empty": "", "text": strings.Repeat("no recording ", 10)} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadTraffic(file); err == nil {
				t.Error("no error")
			}
		})
	}
	whole, err := os.ReadFile(writePcap(t, frame(protocolUDP, 51820, 51820, 0, 0, make([]byte, 40))))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, whole[:len(whole)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTraffic(file); err == nil {
		t.Error("no error for a recording that is cut off")
	}
}
