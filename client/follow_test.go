package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/entente-dev/entente/peering"
)

// aLog is the log of a container as kubelets have it.
type aLog struct {
	at   []time.Time
	text []string
}

func (l *aLog) add(at time.Time, text string) { l.at, l.text = append(l.at, at), append(l.text, text) }

// stream is an open log: what a provider sends until it ends or breaks.
type stream struct {
	io.Reader
	end error
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = s.end
	}
	return n, err
}

func (s *stream) Close() error { return nil }

var errAgentGone = errors.New("the session broke")

// open sends all lines that are wanted, in pieces, and breaks after so many bytes; negative is never.
func (l *aLog) open(o peering.LogOptions, breaks int, r *rand.Rand) io.ReadCloser {
	var b bytes.Buffer
	for i, at := range l.at {
		if o.SinceSeconds != nil && at.Before(time.Now().Add(-time.Duration(*o.SinceSeconds)*time.Second)) {
			continue
		}
		if o.Timestamps {
			b.WriteString(at.Format("2006-01-02T15:04:05.000000000Z07:00") + " ")
		}
		b.WriteString(l.text[i])
	}
	s := &stream{Reader: &pieces{r: r, in: b.Bytes()}, end: io.EOF}
	if breaks >= 0 && breaks < b.Len() {
		s.Reader, s.end = &pieces{r: r, in: b.Bytes()[:breaks]}, errAgentGone
	}
	return s
}

// pieces hands out bytes a few at a time.
type pieces struct {
	r  *rand.Rand
	in []byte
}

func (p *pieces) Read(out []byte) (int, error) {
	if len(p.in) == 0 {
		return 0, io.EOF
	}
	n := copy(out[:min(len(out), 1+p.r.IntN(40))], p.in)
	p.in = p.in[n:]
	return n, nil
}

// However often the provider's agent is replaced, and wherever that cuts a line, each line is read once.
func TestAFollowedLogGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var l aLog
			var plain, stamped strings.Builder
			for i := range 30 {
				at := time.Now().Add(time.Duration(i/(1+r.IntN(3))) * time.Millisecond).UTC() // some at the same time
				if n := len(l.at); n > 0 && at.Before(l.at[n-1]) {
					at = l.at[n-1]
				}
				text := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", r.IntN(30)))
				l.add(at, text)
				plain.WriteString(text)
				stamped.WriteString(at.Format("2006-01-02T15:04:05.000000000Z07:00") + " " + text)
			}
			breaks, fails := 1+r.IntN(5), 0
			o := peering.LogOptions{Container: "c", Follow: true, Timestamps: seed%2 == 0}
			opened := 0
			got, err := followLogs(t.Context(), func(_ context.Context, o peering.LogOptions) (io.ReadCloser, error) {
				if fails > 0 {
					fails--
					return nil, errAgentGone
				}
				opened++
				if opened <= breaks {
					fails = r.IntN(4)
					return l.open(o, r.IntN(1500), r), nil
				}
				return l.open(o, -1, r), nil
			}, o)
			if err != nil {
				t.Fatal(err)
			}
			all, err := io.ReadAll(got)
			if err != nil {
				t.Fatal(err)
			}
			want := plain.String()
			if o.Timestamps {
				want = stamped.String()
			}
			if string(all) != want {
				t.Fatalf("seed %d, opened %d times: read\n%s\nwant\n%s", seed, opened, all, want)
			}
		})
	}
}

func TestALogThatDoesNotGoOnReturnsTheReason(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for name, tc := range map[string]struct {
		log  []string
		o    peering.LogOptions
		want string
	}{
		"it is not followed":         {[]string{"a\n", "b\n"}, peering.LogOptions{}, "a\n"},
		"the pod is gone":            {[]string{"a\n", "b\n"}, peering.LogOptions{Follow: true}, "a\n"},
		"one limits what is read":    {[]string{"a\n", "b\n"}, peering.LogOptions{Follow: true, LimitBytes: new(int64(100))}, "a\n"},
		"a line has no end in sight": {[]string{strings.Repeat("x", 2*maxLine)}, peering.LogOptions{Follow: true}, strings.Repeat("x", maxLine+100)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l aLog
				for i, text := range tc.log {
					l.add(time.Now().Add(time.Duration(i)*time.Second).UTC(), text)
				}
				opened := 0
				got, err := followLogs(t.Context(), func(_ context.Context, o peering.LogOptions) (io.ReadCloser, error) {
					if opened++; opened > 1 {
						return nil, errAgentGone
					}
					stamp := 0
					if o.Timestamps {
						stamp = len("2006-01-02T15:04:05.000000000Z ")
					}
					return l.open(o, len(tc.want)+stamp, r), nil
				}, tc.o)
				if err != nil {
					t.Fatal(err)
				}
				all, err := io.ReadAll(got)
				if string(all) != tc.want || !errors.Is(err, errAgentGone) {
					t.Errorf("read %d bytes, want %d, and ended with %v", len(all), len(tc.want), err)
				}
			})
		})
	}
}

// A provider may send anything.
func FuzzFollowedLogs(f *testing.F) {
	f.Add([]byte("2026-01-02T15:04:05.000000000Z a\n2026-01-02T15:04:05.000000000Z b\n"), 40, true)
	f.Add([]byte("no time\n\n \n2026-01-02T15:04:05Z"), 3, false)
	f.Fuzz(func(t *testing.T, in []byte, cut int, strip bool) {
		p := position{strip: strip}
		cut = min(max(cut, 0), len(in))
		var out []byte
		out = append(out, p.take(in[:cut])...)
		out = append(out, p.take(in[cut:])...)
		out = append(out, p.rest()...)
		whole := position{strip: strip}
		want := append(whole.take(in), whole.rest()...)
		if !bytes.Equal(out, want) {
			t.Errorf("in two pieces it is %q, in one %q", out, want)
		}
		if !strip && !bytes.Equal(out, in) {
			t.Errorf("%q became %q", in, out)
		}
	})
}
