#pragma once

// Restores a value at the end of the scope, also after an exception.
template <typename T>
class selfspec_restored {
public:
    selfspec_restored(T & place, T value) : place(place), before(place) { place = value; }
    ~selfspec_restored() { place = before; }

    selfspec_restored(const selfspec_restored &) = delete;
    selfspec_restored & operator=(const selfspec_restored &) = delete;

private:
    T & place;
    T   before;
};
