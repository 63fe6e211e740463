// Package leak looks for secrets where they must not be: in logs, and in what
// commands print.
//
// A run of tests registers each secret that it uses, and searches all output at the end. Besides
// those the package finds everything that has the form of a secret.
package leak

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering/jointoken"
)

// shortest is the fewest bytes of a secret that are looked for: less occurs by
// chance.
const shortest = 12

// Secrets is what is looked for. The zero value looks for forms only. It may be
// used by several goroutines.
type Secrets struct {
	mu sync.Mutex
	// needles are all that is looked for, by their first eight bytes.
	needles map[uint64][]needle
	known   map[string]bool
	count   int
}

type needle struct {
	text []byte
	// what says whose secret it is, and in which form, and never the secret.
	what string
}

// Finding is a secret where it must not be.
type Finding struct {
	// Where is the file's name, Line its line, from 1.
	Where string
	Line  int
	// What says which secret it is; the secret is not in it.
	What string
}

// String implements fmt.Stringer.
func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s", f.Where, f.Line, f.What) }

// forms are the forms of secrets.
var forms = []struct { //nolint:gochecknoglobals // a constant
	what    string
	pattern *regexp.Regexp
}{
	{"a private key in PEM", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	// The beginning is enough: the secret comes right behind the ID.
	{"the text of a token", regexp.MustCompile(`ent[0-9]+\.[A-Za-z0-9_-]{24}`)},
	{"a bearer token of a ServiceAccount", regexp.MustCompile(`eyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16}`)},
}

// Count returns how many secrets are known.
func (s *Secrets) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// learn adds a secret in all forms in which it may be written; the same one twice
// is one.
func (s *Secrets) learn(what string, secret []byte, written map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[string(secret)] {
		return
	}
	if s.known == nil {
		s.known, s.needles = map[string]bool{}, map[uint64][]needle{}
	}
	s.known[string(secret)] = true
	s.count++
	for form, text := range written {
		if len(text) < shortest {
			continue
		}
		key := binary.LittleEndian.Uint64(text)
		s.needles[key] = append(s.needles[key], needle{text, what + ", " + form})
	}
}

// Text adds a secret that is text, such as a bearer token. One that is too short
// to look for is left out, here and elsewhere.
func (s *Secrets) Text(what, secret string) {
	b := []byte(strings.TrimSpace(secret))
	if len(b) < shortest {
		return
	}
	written := map[string][]byte{"as it is": b}
	for at := range 3 {
		written[fmt.Sprintf("base64 from byte %d", at)] = inBase64(base64.RawStdEncoding, b, at)
	}
	s.learn(what, b, written)
}

// Bytes adds a secret that is not text, such as a key.
func (s *Secrets) Bytes(what string, secret []byte) {
	if len(secret) < shortest {
		return
	}
	written := map[string][]byte{
		"as it is":             secret,
		"hexadecimal":          []byte(hex.EncodeToString(secret)),
		"upper-case hex":       []byte(strings.ToUpper(hex.EncodeToString(secret))),
		"as a list of numbers": []byte(strings.Trim(fmt.Sprint(secret), "[]")),
	}
	for at := range 3 {
		written[fmt.Sprintf("base64 from byte %d", at)] = inBase64(base64.RawStdEncoding, secret, at)
		written[fmt.Sprintf("base64url from byte %d", at)] = inBase64(base64.RawURLEncoding, secret, at)
	}
	s.learn(what, secret, written)
}

// inBase64 returns the characters that encode only b where it is in the middle of a text, with at
// bytes before it in its first group of three.
func inBase64(encoding *base64.Encoding, b []byte, at int) []byte {
	text := []byte(encoding.EncodeToString(append(make([]byte, at), b...)))
	first := (at*8 + 5) / 6
	return text[first : (at+len(b))*8/6]
}

// Token adds a token of Entente: its text, and the secret in it.
func (s *Secrets) Token(text string) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return fmt.Errorf("look for a token: %w", err)
	}
	secret := [32]byte(token.Secret)
	s.Text("the text of token "+token.ID, text)
	s.Bytes("the secret of token "+token.ID, secret[:])
	return nil
}

// PEM adds the private keys in a file, each line by itself: programs that print
// one may break or escape the lines.
func (s *Secrets) PEM(what string, text []byte) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		s.Bytes(what, block.Bytes)
		ends := len(block.Bytes)
		if scalar := scalarOf(block.Bytes); len(scalar) > 0 {
			s.Bytes(what+", its number", scalar)
			ends = bytes.Index(block.Bytes, scalar) + len(scalar)
		}
		body := base64.StdEncoding.EncodeToString(block.Bytes)
		for n := 1; body != ""; n++ {
			line := body[:min(64, len(body))]
			body = body[len(line):]
			// The first line of a key says of which kind it is, and is the same in all.
			if n > 1 && (n-1)*lineBytes < ends {
				s.Text(fmt.Sprintf("%s, line %d of its PEM", what, n), line)
			}
		}
	}
}

// lineBytes is how many bytes are in a line of PEM.
const lineBytes = 48

// scalarOf returns what is secret of a private key on an elliptic curve, in DER; nil of others. The
// public key follows it, which is in certificates, too.
func scalarOf(der []byte) []byte {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		key, err = x509.ParseECPrivateKey(der)
	}
	ec, is := key.(*ecdsa.PrivateKey)
	if err != nil || !is {
		return nil
	}
	scalar, err := ec.Bytes()
	if err != nil || !bytes.Contains(der, scalar) {
		return nil
	}
	return scalar
}

// REST adds the credentials of a connection to an API server.
func (s *Secrets) REST(what string, config *rest.Config) {
	s.Text("the bearer token of "+what, config.BearerToken)
	s.PEM("the client key of "+what, config.KeyData)
}

// Kubeconfig adds all credentials of a kubeconfig.
func (s *Secrets) Kubeconfig(what string, config *api.Config) {
	for name, user := range config.AuthInfos {
		s.Text("the bearer token of "+what+", user "+name, user.Token)
		s.PEM("the client key of "+what+", user "+name, user.ClientKeyData)
	}
}

// Object adds what is secret in a Kubernetes Secret of Entente: private keys,
// tokens and keys of 32 bytes. Names, times and hashes are not.
func (s *Secrets) Object(where string, o *corev1.Secret) {
	for key, value := range o.Data {
		what := fmt.Sprintf("%s of Secret %s (%s)", key, o.Name, where)
		s.PEM(what, value)
		switch {
		case len(value) == 32 && bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			s.Bytes(what, value) // what is text of 32 characters is a cluster ID
		case o.Type == corev1.SecretTypeServiceAccountToken && key == corev1.ServiceAccountTokenKey:
			s.Text(what, string(value))
		default:
			_ = s.Token(string(value)) // most are none
		}
	}
}

// rewatch is the pause before a watch that ended is begun again.
const rewatch = time.Second

// Watch adds each Secret that is in a namespace or comes to it, until ctx ends or
// stop is called. One that is there for less than rewatch while the API server
// ends the watch may be missed.
func (s *Secrets) Watch(ctx context.Context, c ctrlclient.WithWatch, where, namespace string) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	begin := func() (watch.Interface, error) {
		return c.Watch(ctx, &corev1.SecretList{}, ctrlclient.InNamespace(namespace))
	}
	w, err := begin()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch Secrets of %s: %w", where, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if err == nil {
				for e := range w.ResultChan() {
					if o, ok := e.Object.(*corev1.Secret); ok {
						s.Object(where, o)
					}
				}
				w.Stop()
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(rewatch):
			}
			w, err = begin()
		}
	}()
	return func() {
		cancel()
		<-done
	}, nil
}

// Find looks through a text, all of which has to fit in memory.
func (s *Secrets) Find(name string, r io.Reader) ([]Finding, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("look for secrets in %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Finding
	found := func(at int, what string) {
		f := Finding{Where: name, Line: 1 + bytes.Count(text[:at], []byte{'\n'}), What: what}
		if len(out) == 0 || out[len(out)-1] != f {
			out = append(out, f)
		}
	}
	for at := 0; at+8 <= len(text); at++ {
		for _, n := range s.needles[binary.LittleEndian.Uint64(text[at:])] {
			if bytes.HasPrefix(text[at:], n.text) {
				found(at, n.what)
			}
		}
	}
	for _, form := range forms {
		for _, at := range form.pattern.FindAllIndex(text, -1) {
			found(at[0], form.what)
		}
	}
	return out, nil
}

// FindInFiles looks through files; one that is not there has nothing in it. It
// also returns how many bytes it looked at.
func (s *Secrets) FindInFiles(files ...string) (out []Finding, size int64, err error) {
	for _, name := range files {
		f, err := os.Open(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return out, size, fmt.Errorf("look for secrets: %w", err)
		}
		counted := &counter{r: f}
		found, err := s.Find(name, counted)
		_ = f.Close()
		if err != nil {
			return out, size, err
		}
		out, size = append(out, found...), size+counted.n
	}
	return out, size, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}
