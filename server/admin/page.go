package admin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"unicode/utf8"

	"github.com/entente-dev/entente/server/internal/middleware"
)

// A page token has the last key of the page before and the list to which it belongs. It is opaque
// and grants nothing: a call with a token needs the same permission as one without, and an
// invented token only begins elsewhere. Rows are ordered by unique keys, so that rows that come
// and go between two pages neither repeat nor hide another row (AIP-158).

const (
	// pageVersion is the first byte of each token. It changes with the format of the rest.
	pageVersion = 2
	// pageScope is how many bytes the hash of a token's list has.
	pageScope = 12
	// maxPageKey is the longest key of a row: a peer's name and a request's ID.
	maxPageKey = 340
)

// pageToken returns the token of the page that follows a key in a list.
func pageToken(list, after string) string {
	b := append([]byte{pageVersion}, scopeOf(list)...)
	return base64.RawURLEncoding.EncodeToString(append(b, after...))
}

// parsePageToken returns the key after which a page of a list begins, or an empty one for the
// first page.
func parsePageToken(list, token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	bad := middleware.BadField("page_token", "is not a next_page_token of this list")
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) <= 1+pageScope || len(b) > 1+pageScope+maxPageKey {
		return "", bad
	}
	if base64.RawURLEncoding.EncodeToString(b) != token {
		return "", bad // another spelling: with line breaks, or bits left over
	}
	scope, key := b[1:1+pageScope], b[1+pageScope:]
	if b[0] != pageVersion || !bytes.Equal(scope, scopeOf(list)) || !utf8.Valid(key) {
		return "", bad
	}
	return string(key), nil
}

func scopeOf(list string) []byte {
	sum := sha256.Sum256([]byte(list))
	return sum[:pageScope]
}

// paged is the fields of a request for a page.
type paged interface {
	GetPageSize() int32
	GetPageToken() string
}

// pageOf is page, with a message for each row.
func pageOf[T, M any](req paged, list string, rows []T, key func(*T) string, message func(*T) M) (out []M, next string, err error) {
	part, next, err := page(req, list, rows, key)
	for i := range part {
		out = append(out, message(&part[i]))
	}
	return out, next, err
}

// page returns the rows of the page that a request asks for, ordered by their keys, and the token
// of the next page. list names the list and its filter: a token is valid for that only. It sorts
// rows in place.
func page[T any](req paged, list string, rows []T, key func(*T) string) (part []T, next string, err error) {
	after, err := parsePageToken(list, req.GetPageToken())
	if err != nil {
		return nil, "", err
	}
	size := int(req.GetPageSize())
	if size <= 0 {
		size = DefaultPageSize
	}
	size = min(size, MaxPageSize)
	slices.SortFunc(rows, func(a, b T) int { return cmp.Compare(key(&a), key(&b)) })
	if after != "" {
		begin, found := slices.BinarySearchFunc(rows, after, func(row T, after string) int { return cmp.Compare(key(&row), after) })
		if found {
			begin++
		}
		rows = rows[begin:]
	}
	if len(rows) <= size {
		return rows, "", nil
	}
	return rows[:size], pageToken(list, key(&rows[size-1])), nil
}
