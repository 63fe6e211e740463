package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/entente-dev/entente/peering"
)

// CheckQuantities refuses Kubernetes JSON in which an amount of a resource has an exponent that
// no valid amount has. Decoding such an amount, "1e999999999", keeps a processor busy for hours,
// so this check comes before decoding any JSON from outside that may have one. It checks the
// members that are amounts in a PodSpec or PodStatus, wherever they are. It also refuses lists
// with too many elements: an empty container takes a kilobyte.
func CheckQuantities(raw []byte) error {
	if len(raw) > 0 && !json.Valid(raw) {
		var whole json.RawMessage
		return fmt.Errorf("read JSON: %w", json.Unmarshal(raw, &whole))
	}
	// frame is an object or array that is open. For an object, key is that of the
	// member being read, or empty between members.
	type frame struct {
		object, inMember bool
		key              string
	}
	var stack []frame
	elements := 0
	for tok, rest := nextToken(raw); len(tok) > 0; tok, rest = nextToken(rest) {
		top := len(stack) - 1
		if tok[0] == '"' && top >= 0 && stack[top].object && !stack[top].inMember {
			stack[top].key, stack[top].inMember = textOf(tok), true
			continue
		}
		if end := tok[0] == ']' || tok[0] == '}'; !end && top >= 0 && !stack[top].object {
			if elements++; elements > maxJSONElements {
				return fmt.Errorf("the lists in the JSON have more than %d elements", maxJSONElements)
			}
		}
		switch tok[0] {
		case '{', '[':
			if len(stack) >= maxJSONDepth {
				return fmt.Errorf("the JSON nests deeper than %d", maxJSONDepth)
			}
			stack = append(stack, frame{object: tok[0] == '{'})
			continue
		case '}', ']':
			stack = stack[:top]
			top--
		default:
			amount := top >= 0 && isAmount(stack[top].key) || top >= 1 && hasAmounts(stack[top-1].key)
			if amount && !plainQuantity(textOf(tok)) {
				return fmt.Errorf("quantity %s is out of range", strconv.Quote(peering.Text(textOf(tok), maxAmountLen)))
			}
		}
		if top >= 0 {
			stack[top].inMember = false
		}
	}
	return nil
}

// nextToken returns the first token of JSON that is known to be valid, empty at its end, and what
// comes after it. A json.Decoder allocates each token, and all pods and statuses are read here.
func nextToken(raw []byte) (tok, rest []byte) {
	raw = bytes.TrimLeft(raw, " \t\r\n,:")
	if len(raw) == 0 {
		return nil, nil
	}
	n := 1
	switch raw[0] {
	case '{', '}', '[', ']':
	case '"':
		for ; raw[n] != '"'; n++ {
			if raw[n] == '\\' {
				n++
			}
		}
		n++
	default:
		if n = bytes.IndexAny(raw, " \t\r\n,]}"); n < 0 {
			n = len(raw)
		}
	}
	return raw[:n], raw[n:]
}

// textOf returns the text of a token: that of a string, else the token itself.
func textOf(tok []byte) string {
	if tok[0] != '"' {
		return string(tok)
	}
	if bytes.IndexByte(tok, '\\') < 0 {
		return string(tok[1 : len(tok)-1])
	}
	var s string
	_ = json.Unmarshal(tok, &s) // it is valid
	return s
}

// isAmount reports whether a member is an amount. Like encoding/json, it ignores the case of
// names.
func isAmount(key string) bool {
	return slices.ContainsFunc([]string{"sizeLimit", "divisor", "quantity", "perPod", "perContainer"}, func(name string) bool { return strings.EqualFold(key, name) })
}

// hasAmounts reports whether a member is a map of resources to amounts.
func hasAmounts(key string) bool {
	return slices.ContainsFunc([]string{"requests", "limits", "overhead", "allocatedResources", "capacity"}, func(name string) bool { return strings.EqualFold(key, name) })
}

// plainQuantity reports whether decoding an amount is quick.
func plainQuantity(s string) bool {
	s = strings.TrimSpace(s)
	if len(s) > maxAmountLen {
		return false
	}
	i := strings.IndexAny(s, "eE")
	if i < 0 || i == len(s)-1 {
		return true
	}
	exponent, err := strconv.Atoi(s[i+1:])
	if errors.Is(err, strconv.ErrRange) {
		return false
	}
	// What is not a number is a suffix, such as Ei.
	return err != nil || exponent >= -maxQuantityExponent && exponent <= maxQuantityExponent
}
